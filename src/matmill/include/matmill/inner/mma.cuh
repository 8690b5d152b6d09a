// The long sum on the matrix units (mma.sync), for products that plain multiply-adds hold up.
//
//   a team's stages ── fragments, a step ahead ──▶ registers ──▶ mma ──▶ sums of a step ──▶ acc          (teams.cuh)
//
// DOWN x ACROSS warps take 8 TM rows and 8 TN columns each; what few lines are left are the border's (border.cuh). Of a
// Gram matrix's tiles there are those on and above the diagonal, and of those on it, where that saves something, the
// units on and above it alone. A team's GROUPS of warps take k's in turns. What order k is
// summed in does not matter, so a lane's operands need not be the k's that the fragment's layout names, as long as E and
// F agree: lane 4 g + t loads V neighbouring k's of TM rows and of TN columns at once.
//
// float64: the units round as plain arithmetic does.
//
// float32: the units multiply 11 bits. x = high + low, each of 11 bits and exact up to 2^-23 of x; of the product's four
// terms low * low, 2^-22 of it, is left out:
//
//   x * y = low * high + high * low + high * high      three mma, the small terms first
//
// The units cut sums off where plain arithmetic rounds. So a step's few k start from zero, and their sum is added to the
// long one by plain arithmetic. Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance" (2022), is where both come from.
//
// The smallest numbers would lose their low part, so all are split as 2^12 times what they are; then whatever is normal
// keeps its bits. Infinities, NaN and numbers so large that they become infinite leave sums that are no finite numbers.
// Where a block ends with one it does its share again by plain multiply-adds, straight from memory, which takes long.
#pragma once

#include "matmill/inner/remainder.cuh"
#include "matmill/inner/fragments.cuh"
#include "matmill/inner/matrix.cuh"
#include "matmill/inner/k_groups.cuh"
#include "matmill/inner/block_reduce.cuh"
#include "matmill/ptx/mma.cuh"

namespace matmill {

// SCALE times a float32, as two numbers that the matrix units take whole; high is it to the nearest 11 bits. Rounded by
// integer instructions: float ones, by Veltkamp's way, are no more and took products a fifth longer on an H200, where the
// matrix units' operands go the same way as theirs.
struct Split {
  static constexpr unsigned KEPT = 0xffffe000u, HALF = 0x1000u;
  static constexpr float SCALE = 4096;

  unsigned high, low;

  __device__ __forceinline__ explicit Split(float number) {
    const float x = SCALE * number;
    high = (__float_as_uint(x) + HALF) & KEPT;
    low = __float_as_uint(x - __uint_as_float(high));
  }
  __device__ __forceinline__ Split() {}
};

template <class Config_>
struct UnitProduct {
  using Config = Config_;
  static constexpr int M = Config::M, N = Config::N, TM = Config::TM, TN = Config::TN;
  static constexpr int DOWN = Config::DOWN, ACROSS = Config::ACROSS, V = Config::V, BS = Config::BS, S = Config::S;
  static constexpr int BK = Config::BK, TEAMS = Config::U, TEAM = BS / TEAMS;
  static constexpr bool GRAM = Config::GRAM != 0, SPLITS = sizeof(Scalar) == 4, HALVES = sizeof(Scalar) == 2;
  static constexpr bool TRIANGLE = GRAM && DOWN == 1;  // of the one tile, no more is kept
  // Of tiles on the diagonal only one half is made. Not of several tiles of other types: their fragments would take more
  // copies of registers than that saves.
  static constexpr bool HALVED = GRAM && (SPLITS || TRIANGLE);
  static constexpr int WARPS = GRAM ? DOWN * (DOWN + 1) / 2 : DOWN * ACROSS, GROUPS = TEAM / S;

  // The first column of units in row i of a triangle, and where the sums of a unit are kept, in fours.
  static constexpr int first_column(bool triangle, int i) { return triangle ? 2 * i : 0; }
  static constexpr int place(int i, int j) { return TRIANGLE ? i * (TN - i + 1) + j - 2 * i : i * TN + j; }
  static constexpr int OUT = 4 * (place(TM / 2 - 1, TN - 1) + 1);
  static constexpr int LOADS = V == 1 ? 2 : 1;                                // that make up a fragment
  static constexpr int STEP = 4 * V * LOADS, STEPS = BK / (STEP * GROUPS);    // k's of a group at a time
  static constexpr int TERMS = HALVES ? 16 : 8, PRODUCTS = STEP / TERMS;      // k's of an mma; fragments of a step
  static_assert(S == 32 * WARPS, "whole warps");
  static_assert(TEAM * TEAMS == BS && GROUPS * S == TEAM, "whole groups of them, whole teams of those");
  static_assert(TM % 2 == 0, "units have 16 rows");
  static_assert(STEPS * STEP * GROUPS == BK && PRODUCTS * TERMS == STEP, "whole fragments");
  static_assert(STEPS % 2 == 0, "sets of registers take turns");
  static_assert(!GRAM || (M == N && DOWN == ACROSS), "tiles are as symmetric as a Gram matrix");
  static_assert(!GRAM || TM == TN || (DOWN == 1 && TM == TN + 1), "and have the same lines down as across");

  static constexpr int BE = M > 8 * TM * DOWN ? M - 8 * TM * DOWN : 0;  // rows and columns beyond the tiles
  static constexpr int BF = N > 8 * TN * ACROSS ? N - 8 * TN * ACROSS : 0;
  static constexpr bool BORDERED = BE + BF > 0;
  static_assert(!BORDERED || (SPLITS && !GRAM), "tiles cover D but for a border");
  using LinesE = Lines<Scalar, M - BE, TM, 8 * DOWN, V, Config::E_MODE, Config::E_GROUP>;
  using LinesF = Lines<Scalar, N - BF, TN, 8 * ACROSS, V, GRAM ? Config::E_MODE : Config::F_MODE,
                       GRAM ? Config::E_GROUP : Config::F_GROUP>;
  static_assert(!HALVES || V % 4 == 0, "a lane has the k's of whole fragments");
  using StageE = Stage<Scalar, M, BK, Config::E_MODE, Config::E_WIDTH, Config::E_PITCH, TEAM, TEAMS == 1>;
  using StageF = Stage<Scalar, N, BK, Config::F_MODE, Config::F_WIDTH, Config::F_PITCH, TEAM, TEAMS == 1>;
  using Stages = TeamStages<StageE, StageF, BK, Config::STAGES, STEPS, TEAMS, TEAM, GRAM>;
  using Beyond = Border<Config, BE, BF, LOADS, BS / S, StageE, StageF>;
  static constexpr int PIPELINE_BYTES = TEAMS * Config::STAGES * Stages::BYTES;
  using Sum = TileSum<Acc, BS, S, OUT, PIPELINE_BYTES>;
  static constexpr int SUM_BYTES = Sum::BYTES > Beyond::BYTES ? Sum::BYTES : Beyond::BYTES;
  static constexpr int SHARED_BYTES = PIPELINE_BYTES > SUM_BYTES ? PIPELINE_BYTES : SUM_BYTES;

  Acc acc[OUT] = {};
  unsigned nothing;  // 0, which the compiler does not know
  Beyond border;

  __device__ __forceinline__ void run(const Matrix& E, const Matrix& F, Index k, unsigned char* shared) {
    nothing = static_cast<unsigned>(k >> 62);
    multiply_all(E, F, k, shared);
    if constexpr (SPLITS) {
      bool finite = true;
#pragma unroll
      for (int i = 0; i < OUT; ++i) {
        finite &= isfinite(acc[i]);
        acc[i] *= 1 / (Split::SCALE * Split::SCALE);
      }
      if (__syncthreads_or(!finite)) multiply_plainly(E, F, k);
    }
  }

  // Calls write(row, column, sum) once for every output, from some thread.
  template <class Write>
  __device__ __forceinline__ void sum(unsigned char* shared, Write write) {
    if constexpr (SUM_BYTES > 0) __syncthreads();  // the stages become the place of the sums
    if constexpr (BORDERED) border.template sum<LinesE, LinesF>(reinterpret_cast<Acc*>(shared), write);
    Sum::run(acc, reinterpret_cast<Acc*>(shared), [&](int s, int output, Acc sum) {
      int down, across, unit = 0;
      tile_of(s / 32, down, across);
      while (output / 4 >= place(unit, TN - 1) + 1) ++unit;
      const int i = 2 * unit + output % 4 / 2, j = output / 4 - place(unit, 0);
      const int row = LinesE::line(down * 8 + s % 32 / 4, i);
      const int column = LinesF::line(across * 8 + s % 4 * 2 + output % 2, j);
      if (row >= M - BE || column >= N - BF) return;
      // On the diagonal a lane's i-th row is its i-th column: pairs of lines are there twice, but for units not made.
      if (GRAM && down == across && (i > j || (i == j && row > column))) return;
      write(row, column, sum);
      if (GRAM && row != column) write(column, row, sum);
    });
  }

 private:
  // The tile of a warp of a group. A Gram matrix's tiles on its diagonal, which are quicker, are those of the warps 0,
  // 1, 4, 5, 8, ...: of four schedulers, which take warps in turns, none then has much more to do than another.
  static __device__ __forceinline__ void tile_of(int warp, int& down, int& across) {
    if constexpr (GRAM) {
      const int pairs = warp / 4 * 2, own = pairs + warp % 4;
      if (warp % 4 < 2 && own < DOWN) {
        down = across = own;
        return;
      }
      int left = warp - min(DOWN, pairs + min(warp % 4, 2));
      down = 0;
      while (left >= DOWN - 1 - down) left -= DOWN - 1 - down++;
      across = down + 1 + left;
    } else {
      down = warp / ACROSS;
      across = warp % ACROSS;
    }
  }

  __device__ __forceinline__ void multiply_all(const Matrix& E, const Matrix& F, Index k, unsigned char* shared) {
    constexpr int F_PITCH = GRAM ? StageE::PITCH : StageF::PITCH;
    const int thread = Stages::thread(), lane = thread % 32, own = (thread / S * 4 + lane % 4) * V;
    int down, across, e_at[TM], f_at[TN];
    tile_of(thread % S / 32, down, across);
    LinesE::template places<StageE::PITCH>(e_at, down * 8 + lane / 4, own, E.first, E.line_stride);
    LinesF::template places<F_PITCH>(f_at, across * 8 + lane / 4, own, F.first, F.line_stride);
    if constexpr (BORDERED) border.begin(E, F, own);
    LinesE e[2][LOADS];
    LinesF f[2][LOADS];
    const bool diagonal = HALVED && down == across;  // F's lines are E's
    const auto load = [&](const Scalar* stage, int step) {
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const int k = (step * LOADS + i) * (4 * V * GROUPS);
        if constexpr (BORDERED) border.load(stage, step % 2, i, k);
        e[step % 2][i].template read_stage<StageE::PITCH>(stage, e_at, k);
        if (TRIANGLE || diagonal) continue;
        f[step % 2][i].template read_stage<F_PITCH>(GRAM ? stage : stage + StageE::ELEMENTS, f_at, k);
      }
    };
    Stages::run(
        E, F, k, shared, [&](const Scalar* stage) { load(stage, 0); },
        [&](auto stage, int step, int next) {
          load(stage(), next);
          if constexpr (HALVED) {
            if (TRIANGLE || diagonal) {
              multiply<true>(e[step % 2], e[step % 2]);
              return;
            }
          }
          if constexpr (!TRIANGLE) {
            multiply<false>(e[step % 2], f[step % 2]);
            if constexpr (BORDERED) border.multiply(e[step % 2], f[step % 2], step % 2);
          }
        });
  }

  // A step's product; of a triangle the units on and above the diagonal, whose columns' lines are those of its rows.
  template <bool TRI, class LF>
  __device__ __forceinline__ void multiply(const LinesE (&e)[LOADS], const LF (&f)[LOADS]) {
    if constexpr (SPLITS && TRI) {
      multiply_split(e);
    } else if constexpr (SPLITS) {
      multiply_split(e, f);
    } else if constexpr (HALVES) {
      multiply_halves<TRI>(e[0], f[0]);
    } else {
      multiply_doubles<TRI>(e, f);
    }
  }

  // The long sums of 16 x 8 outputs, and short ones added to them.
  using Four = Acc[4];
  __device__ __forceinline__ Four& sums(int i, int j) { return *reinterpret_cast<Four*>(acc + place(i, j) * 4); }
  __device__ __forceinline__ void add(int i, int j, const ptx::Sums<false>& some) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sums(i, j)[c] += some.x[c];
  }

  // 16-bit: fragments are pairs of neighbours in k.
  template <bool TRI, class LF>
  __device__ __forceinline__ void multiply_halves(const LinesE& e, const LF& f) {
    unsigned b[TN][2 * PRODUCTS];
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
      for (int p = 0; p < 2 * PRODUCTS; ++p) b[j][p] = f.pair(j, p);
#pragma unroll
    for (int i = 0; i < TM / 2; ++i)
#pragma unroll
      for (int j = first_column(TRI, i); j < TN; ++j) {
        ptx::Sums<false> some;
#pragma unroll
        for (int p = 0; p < 2 * PRODUCTS; p += 2) {
          const unsigned a[4] = {e.pair(2 * i, p), e.pair(2 * i + 1, p), e.pair(2 * i, p + 1), e.pair(2 * i + 1, p + 1)};
          ptx::multiply_add<Scalar>(some, a, b[j][p], b[j][p + 1]);
        }
        add(i, j, some);
      }
  }

  // A lane's part of a line in one half of the k's of the p-th fragment.
  template <class L>
  static __device__ __forceinline__ Acc part(const L (&lines)[LOADS], int line, int p, int half) {
    const int at = 2 * p + half;
    return lines[at / V].wide(line, at % V);
  }

  // float64: straight to the long sums.
  template <bool TRI, class LF>
  __device__ __forceinline__ void multiply_doubles(const LinesE (&e)[LOADS], const LF (&f)[LOADS]) {
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
      for (int i = 0; i < TM / 2; ++i) {
        Acc a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = part(e, 2 * i + r % 2, p, r / 2);
#pragma unroll
        for (int j = first_column(TRI, i); j < TN; ++j)
          ptx::mma_m16n8k8(sums(i, j), a, part(f, j, p, 0), part(f, j, p, 1));
      }
  }

  __device__ __forceinline__ void multiply_split(const LinesE (&e)[LOADS], const LinesF (&f)[LOADS]) {
    Split b[PRODUCTS][TN][2];
    split(b, f);
    multiply_parts<false>(b, [&](int line, int p, int half) { return Split(part(e, line, p, half)); });
  }

  // The same for a triangle, whose rows are its columns. An instruction wants a row's k's apart and a column's side by
  // side, so one of them is copied: once, by an instruction that the compiler does not see through, as it would else
  // copy for every product. (The instructions on 4 k's at a time need no copies, and take longer for all that.)
  __device__ __forceinline__ void multiply_split(const LinesE (&e)[LOADS]) {
    Split b[PRODUCTS][TM][2];
    split(b, e);
    multiply_parts<true>(b, [&](int line, int p, int half) {
      Split copy = b[p][line][half];
      copy.high ^= nothing;
      copy.low ^= nothing;
      return copy;
    });
  }

  // Term by term, as what follows each other does not wait for each other. row(line, p, half) is split as well.
  template <bool TRI, int COLUMNS, class Row>
  __device__ __forceinline__ void multiply_parts(const Split (&b)[PRODUCTS][COLUMNS][2], Row row) {
#pragma unroll
    for (int i = 0; i < TM / 2; ++i) {
      unsigned high[PRODUCTS][4], low[PRODUCTS][4];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const Split a = row(2 * i + r % 2, p, r / 2);
          high[p][r] = a.high;
          low[p][r] = a.low;
        }
      const int first = first_column(TRI, i);
      ptx::Sums<false> some[TN];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) {
#pragma unroll
        for (int j = first; j < TN; ++j) ptx::mma_m16n8k8_tf32(some[j], low[p], b[p][j][0].high, b[p][j][1].high);
#pragma unroll
        for (int j = first; j < TN; ++j) ptx::mma_m16n8k8_tf32(some[j], high[p], b[p][j][0].low, b[p][j][1].low);
#pragma unroll
        for (int j = first; j < TN; ++j) ptx::mma_m16n8k8_tf32(some[j], high[p], b[p][j][0].high, b[p][j][1].high);
      }
#pragma unroll
      for (int j = first; j < TN; ++j) add(i, j, some[j]);
    }
  }

  template <int COUNT, class L>
  static __device__ __forceinline__ void split(Split (&parts)[PRODUCTS][COUNT][2], const L (&lines)[LOADS]) {
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
      for (int line = 0; line < COUNT; ++line)
#pragma unroll
        for (int half = 0; half < 2; ++half) parts[p][line][half] = Split(part(lines, line, p, half));
  }

  // The sums of the block's share of k anew, by plain multiply-adds. Its groups take its k's in turns.
  __device__ __forceinline__ void multiply_plainly(const Matrix& E, const Matrix& F, Index k) {
    using RowsOfE = Lines<Scalar, M - BE, TM, 8 * DOWN, 1, Config::E_MODE, Config::E_GROUP>;
    using ColumnsOfF = Lines<Scalar, N - BF, TN, 8 * ACROSS, 1, GRAM ? Config::E_MODE : Config::F_MODE,
                             GRAM ? Config::E_GROUP : Config::F_GROUP>;
    constexpr Index SHARE = TEAMS * BK;
    int down, across;
    const int lane = threadIdx.x % 32;
    tile_of(threadIdx.x % S / 32, down, across);
#pragma unroll
    for (int i = 0; i < OUT; ++i) acc[i] = 0;
    for (Index first = blockIdx.x * SHARE; first < k; first += gridDim.x * SHARE) {
      const Index end = first + SHARE < k ? first + SHARE : k;
#pragma unroll 1
      for (Index at = first + threadIdx.x / S; at < end; at += BS / S) {
        RowsOfE e;
        e.read_one(E.first + at * E.k_stride, down * 8 + lane / 4, E.line_stride);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          ColumnsOfF f;
          f.read_one(F.first + at * F.k_stride, across * 8 + lane % 4 * 2 + side, F.line_stride);
#pragma unroll
          for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = first_column(TRIANGLE, i / 2); j < TN; ++j)
              sums(i / 2, j)[i % 2 * 2 + side] += e.wide(i, 0) * f.wide(j, 0);
        }
      }
    }
  }
};

}  // namespace matmill
