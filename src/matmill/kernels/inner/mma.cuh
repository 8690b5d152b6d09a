// The main loop of an inner product on the tensor cores (mma.sync), for products that the FMA units limit.
//
//   a k-group's stages ── fragments, one step ahead ──▶ registers ──▶ mma ──▶ sums of a step ──▶ acc     (k_groups.cuh)
//
// Each of DOWN x ACROSS warps takes 8 TM rows and 8 TN columns; remainder rows and columns: see remainder.cuh. A Gram
// matrix has only the tiles on and above the diagonal; a tile on the diagonal computes, where that pays, only the mma
// on and above it. A k-group's GROUPS of warps take interleaved k's. The sum does not depend on the order of k, so a
// lane's operands need not be the k's that the fragment layout names, as long as E and F agree: lane 4 g + t loads V
// consecutive k's of TM rows and of TN columns at once.
//
// float64: tensor cores round like FMAs.
//
// float32: tensor cores multiply 11-bit mantissas (tf32). x = high + low, 11 bits each, is exact up to 2^-23 of x. Of
// the product's four terms, low * low (2^-22 of it) is omitted:
//
//   x * y = low * high + high * low + high * high      three mma, the small terms first
//
// Tensor cores truncate sums where FMAs round. So each step sums its few k from zero, and an FMA-unit addition adds the
// result to acc. Both methods come from Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance" (2022).
//
// The smallest floats would lose their low part, so all are scaled by 2^12 before the split; every normal number then
// keeps its bits. Infinities, NaN and numbers that the scale makes infinite give sums that are not finite. A block that
// ends with such a sum recomputes its k with FMAs, straight from memory, which is slow.
#pragma once

#include "kernels/inner/remainder.cuh"
#include "kernels/inner/fragments.cuh"
#include "kernels/inner/matrix.cuh"
#include "kernels/inner/k_groups.cuh"
#include "kernels/inner/block_reduce.cuh"
#include "kernels/shared/tf32_split.cuh"
#include "matmill/ptx/mma.cuh"

namespace matmill {

template <class Config_>
struct MmaMainloop {
  using Config = Config_;
  static constexpr int M = Config::M, N = Config::N, TM = Config::TM, TN = Config::TN;
  static constexpr int DOWN = Config::DOWN, ACROSS = Config::ACROSS, V = Config::V, BS = Config::BS, S = Config::S;
  static constexpr int BK = Config::BK, K_GROUPS = Config::U, GROUP_THREADS = BS / K_GROUPS;
  static constexpr bool GRAM = Config::GRAM != 0, TF32_SPLIT = sizeof(Scalar) == 4, IS_16BIT = sizeof(Scalar) == 2;
  static constexpr bool TRIANGLE = GRAM && DOWN == 1;  // one tile: only mma on and above its diagonal
  // Tiles on the diagonal compute one half only. Not with several tiles of other types: their fragments would need more
  // register copies than that saves.
  static constexpr bool HALF_DIAGONAL = GRAM && (TF32_SPLIT || TRIANGLE);
  static constexpr int WARPS = GRAM ? DOWN * (DOWN + 1) / 2 : DOWN * ACROSS, GROUPS = GROUP_THREADS / S;

  // The first mma column in mma row i of a triangle, and the index of an mma's accumulators, in fours.
  static constexpr int first_column(bool triangle, int i) { return triangle ? 2 * i : 0; }
  static constexpr int acc_index(int i, int j) { return TRIANGLE ? i * (TN - i + 1) + j - 2 * i : i * TN + j; }
  static constexpr int OUT = 4 * (acc_index(TM / 2 - 1, TN - 1) + 1);
  static constexpr int LOADS = V == 1 ? 2 : 1;                              // loads per fragment
  static constexpr int STEP = 4 * V * LOADS, STEPS = BK / (STEP * GROUPS);  // k's per step of a group; steps per stage
  static constexpr int MMA_K = IS_16BIT ? 16 : 8, MMAS = STEP / MMA_K;      // k's of an mma; mma per step
  static_assert(S == 32 * WARPS, "a group is one warp per tile");
  static_assert(GROUP_THREADS * K_GROUPS == BS && GROUPS * S == GROUP_THREADS,
                "groups must divide k-groups, and k-groups the block");
  static_assert(TM % 2 == 0, "an mma has 16 rows");
  static_assert(STEPS * STEP * GROUPS == BK && MMAS * MMA_K == STEP,
                "a stage must be a whole number of steps, a step of mma");
  static_assert(STEPS % 2 == 0, "fragments are double-buffered in registers");
  static_assert(!GRAM || (M == N && DOWN == ACROSS), "a Gram matrix needs as many tiles down as across");
  static_assert(!GRAM || TM == TN || (DOWN == 1 && TM == TN + 1),
                "a Gram matrix needs square tiles; a single one may have a spare row");

  static constexpr int EXTRA_ROWS = M > 8 * TM * DOWN ? M - 8 * TM * DOWN : 0;  // remainder rows and columns
  static constexpr int EXTRA_COLUMNS = N > 8 * TN * ACROSS ? N - 8 * TN * ACROSS : 0;
  static constexpr bool HAS_REMAINDER = EXTRA_ROWS + EXTRA_COLUMNS > 0;
  static_assert(!HAS_REMAINDER || (TF32_SPLIT && !GRAM),
                "only float32 products that are no Gram matrix have a remainder");
  using FragmentE = Fragment<Scalar, M - EXTRA_ROWS, TM, 8 * DOWN, V, Config::E_MODE, Config::E_GROUP>;
  using FragmentF = Fragment<Scalar, N - EXTRA_COLUMNS, TN, 8 * ACROSS, V, GRAM ? Config::E_MODE : Config::F_MODE,
                             GRAM ? Config::E_GROUP : Config::F_GROUP>;
  static_assert(!IS_16BIT || V % 4 == 0, "a lane must hold whole 16-bit fragments");
  using StageE = Stage<Scalar, M, BK, Config::E_MODE, Config::E_WIDTH, Config::E_PITCH, GROUP_THREADS, K_GROUPS == 1>;
  using StageF = Stage<Scalar, N, BK, Config::F_MODE, Config::F_WIDTH, Config::F_PITCH, GROUP_THREADS, K_GROUPS == 1>;
  using Stages = KGroupStages<StageE, StageF, BK, Config::STAGES, STEPS, K_GROUPS, GROUP_THREADS, GRAM>;
  using RemainderTile = Remainder<Config, EXTRA_ROWS, EXTRA_COLUMNS, LOADS, BS / S, StageE, StageF>;
  static constexpr int PIPELINE_BYTES = K_GROUPS * Config::STAGES * Stages::BYTES;
  using Reduce = BlockReduce<Acc, BS, S, OUT, PIPELINE_BYTES>;
  static constexpr int SUM_BYTES = Reduce::BYTES > RemainderTile::BYTES ? Reduce::BYTES : RemainderTile::BYTES;
  static constexpr int SHARED_BYTES = PIPELINE_BYTES > SUM_BYTES ? PIPELINE_BYTES : SUM_BYTES;

  Acc acc[OUT] = {};
  unsigned opaque_zero;  // 0, unknown to the compiler
  RemainderTile remainder;

  __device__ __forceinline__ void run(const Matrix& E, const Matrix& F, Index k, unsigned char* shared) {
    opaque_zero = static_cast<unsigned>(k >> 62);
    multiply_all(E, F, k, shared);
    if constexpr (TF32_SPLIT) {
      bool finite = true;
#pragma unroll
      for (int i = 0; i < OUT; ++i) {
        finite &= isfinite(acc[i]);
        acc[i] *= 1 / (Split::SCALE * Split::SCALE);
      }
      if (__syncthreads_or(!finite)) multiply_with_fma(E, F, k);
    }
  }

  // Calls write(row, column, sum) once per output, from any thread.
  template <class Write>
  __device__ __forceinline__ void sum(unsigned char* shared, Write write) {
    if constexpr (SUM_BYTES > 0) __syncthreads();  // the stages become the reduction buffer
    if constexpr (HAS_REMAINDER) remainder.template sum<FragmentE, FragmentF>(reinterpret_cast<Acc*>(shared), write);
    Reduce::run(acc, reinterpret_cast<Acc*>(shared), [&](int s, int output, Acc sum) {
      int down, across, mma_row = 0;
      tile_of(s / 32, down, across);
      while (output / 4 >= acc_index(mma_row, TN - 1) + 1) ++mma_row;
      const int i = 2 * mma_row + output % 4 / 2, j = output / 4 - acc_index(mma_row, 0);
      const int row = FragmentE::outer_index(down * 8 + s % 32 / 4, i);
      const int column = FragmentF::outer_index(across * 8 + s % 4 * 2 + output % 2, j);
      if (row >= M - EXTRA_ROWS || column >= N - EXTRA_COLUMNS) return;
      // On the diagonal a lane's i-th row is its i-th column: pairs occur twice, except in mma that are not computed.
      if (GRAM && down == across && (i > j || (i == j && row > column))) return;
      write(row, column, sum);
      if (GRAM && row != column) write(column, row, sum);
    });
  }

 private:
  // The tile of a warp of a group. A Gram matrix's diagonal tiles, which are faster, belong to warps 0, 1, 4, 5, 8,
  // ...: warps are assigned to four schedulers round-robin, so the load is balanced.
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
    FragmentE::template offsets<StageE::PITCH>(e_at, down * 8 + lane / 4, own, E.first, E.outer_stride);
    FragmentF::template offsets<F_PITCH>(f_at, across * 8 + lane / 4, own, F.first, F.outer_stride);
    if constexpr (HAS_REMAINDER) remainder.begin(E, F, own);
    FragmentE e[2][LOADS];
    FragmentF f[2][LOADS];
    const bool diagonal = HALF_DIAGONAL && down == across;  // F's fragments are E's
    const auto load = [&](const Scalar* stage, int step) {
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const int k = (step * LOADS + i) * (4 * V * GROUPS);
        if constexpr (HAS_REMAINDER) remainder.load(stage, step % 2, i, k);
        e[step % 2][i].template read_stage<StageE::PITCH>(stage, e_at, k);
        if (TRIANGLE || diagonal) continue;
        f[step % 2][i].template read_stage<F_PITCH>(GRAM ? stage : stage + StageE::ELEMENTS, f_at, k);
      }
    };
    Stages::run(
        E, F, k, shared, [&](const Scalar* stage) { load(stage, 0); },
        [&](auto stage, int step, int next) {
          load(stage(), next);
          if constexpr (HALF_DIAGONAL) {
            if (TRIANGLE || diagonal) {
              multiply<true>(e[step % 2], e[step % 2]);
              return;
            }
          }
          if constexpr (!TRIANGLE) {
            multiply<false>(e[step % 2], f[step % 2]);
            if constexpr (HAS_REMAINDER) remainder.multiply(e[step % 2], f[step % 2], step % 2);
          }
        });
  }

  // Multiplies one step. In a triangle: only the mma on and above the diagonal, whose column operands are its row
  // operands.
  template <bool TRI, class LF>
  __device__ __forceinline__ void multiply(const FragmentE (&e)[LOADS], const LF (&f)[LOADS]) {
    if constexpr (TF32_SPLIT && TRI) {
      multiply_split(e);
    } else if constexpr (TF32_SPLIT) {
      multiply_split(e, f);
    } else if constexpr (IS_16BIT) {
      multiply_16bit<TRI>(e[0], f[0]);
    } else {
      multiply_float64<TRI>(e, f);
    }
  }

  // The accumulators of 16 x 8 outputs, and adding a step's sums to them.
  using Quad = Acc[4];
  __device__ __forceinline__ Quad& sums(int i, int j) { return *reinterpret_cast<Quad*>(acc + acc_index(i, j) * 4); }
  __device__ __forceinline__ void add(int i, int j, const ptx::Accumulator<false>& partial) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sums(i, j)[c] += partial.x[c];
  }

  // 16-bit: registers of a fragment hold two consecutive k.
  template <bool TRI, class LF>
  __device__ __forceinline__ void multiply_16bit(const FragmentE& e, const LF& f) {
    unsigned b[TN][2 * MMAS];
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
      for (int p = 0; p < 2 * MMAS; ++p) b[j][p] = f.pair(j, p);
#pragma unroll
    for (int i = 0; i < TM / 2; ++i)
#pragma unroll
      for (int j = first_column(TRI, i); j < TN; ++j) {
        ptx::Accumulator<false> partial;
#pragma unroll
        for (int p = 0; p < 2 * MMAS; p += 2) {
          const unsigned a[4] = {e.pair(2 * i, p), e.pair(2 * i + 1, p), e.pair(2 * i, p + 1),
                                 e.pair(2 * i + 1, p + 1)};
          ptx::mma_16x8x16<Scalar>(partial, a, b[j][p], b[j][p + 1]);
        }
        add(i, j, partial);
      }
  }

  // A lane's element of a row or column, in one half of the k's of the p-th mma.
  template <class L>
  static __device__ __forceinline__ Acc element(const L (&fragment)[LOADS], int outer, int p, int half) {
    const int at = 2 * p + half;
    return fragment[at / V].wide(outer, at % V);
  }

  // float64: mma accumulates in acc directly.
  template <bool TRI, class LF>
  __device__ __forceinline__ void multiply_float64(const FragmentE (&e)[LOADS], const LF (&f)[LOADS]) {
#pragma unroll
    for (int p = 0; p < MMAS; ++p)
#pragma unroll
      for (int i = 0; i < TM / 2; ++i) {
        Acc a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = element(e, 2 * i + r % 2, p, r / 2);
#pragma unroll
        for (int j = first_column(TRI, i); j < TN; ++j) {
          const double b[2] = {element(f, j, p, 0), element(f, j, p, 1)};
          ptx::mma_m16n8(sums(i, j), a, b);
        }
      }
  }

  __device__ __forceinline__ void multiply_split(const FragmentE (&e)[LOADS], const FragmentF (&f)[LOADS]) {
    Split b[MMAS][TN][2];
    split(b, f);
    multiply_terms<false>(b, [&](int outer, int p, int half) { return Split(element(e, outer, p, half)); });
  }

  // The same for a triangle, whose rows are its columns. An mma needs a row's k's in separate registers and a column's
  // in a pair, so one operand is copied. The XOR with opaque_zero copies it once; otherwise the compiler would copy it
  // for every mma. (m16n8k4 needs no copies, but is slower.)
  __device__ __forceinline__ void multiply_split(const FragmentE (&e)[LOADS]) {
    Split b[MMAS][TM][2];
    split(b, e);
    multiply_terms<true>(b, [&](int outer, int p, int half) {
      Split copy = b[p][outer][half];
      copy.high ^= opaque_zero;
      copy.low ^= opaque_zero;
      return copy;
    });
  }

  // Term by term, so that consecutive mma are independent. row(outer, p, half) returns a split as well.
  template <bool TRI, int COLUMNS, class Row>
  __device__ __forceinline__ void multiply_terms(const Split (&b)[MMAS][COLUMNS][2], Row row) {
#pragma unroll
    for (int i = 0; i < TM / 2; ++i) {
      unsigned high[MMAS][4], low[MMAS][4];
#pragma unroll
      for (int p = 0; p < MMAS; ++p)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const Split a = row(2 * i + r % 2, p, r / 2);
          high[p][r] = a.high;
          low[p][r] = a.low;
        }
      const int first = first_column(TRI, i);
      ptx::Accumulator<false> partial[TN];
#pragma unroll
      for (int p = 0; p < MMAS; ++p) {
#pragma unroll
        for (int j = first; j < TN; ++j) ptx::mma_m16n8k8_tf32(partial[j], low[p], b[p][j][0].high, b[p][j][1].high);
#pragma unroll
        for (int j = first; j < TN; ++j) ptx::mma_m16n8k8_tf32(partial[j], high[p], b[p][j][0].low, b[p][j][1].low);
#pragma unroll
        for (int j = first; j < TN; ++j) ptx::mma_m16n8k8_tf32(partial[j], high[p], b[p][j][0].high, b[p][j][1].high);
      }
#pragma unroll
      for (int j = first; j < TN; ++j) add(i, j, partial[j]);
    }
  }

  template <int COUNT, class L>
  static __device__ __forceinline__ void split(Split (&splits)[MMAS][COUNT][2], const L (&fragment)[LOADS]) {
#pragma unroll
    for (int p = 0; p < MMAS; ++p)
#pragma unroll
      for (int outer = 0; outer < COUNT; ++outer)
#pragma unroll
        for (int half = 0; half < 2; ++half) splits[p][outer][half] = Split(element(fragment, outer, p, half));
  }

  // Recomputes the sums of the block's k with FMAs. Its groups take interleaved k's.
  __device__ __forceinline__ void multiply_with_fma(const Matrix& E, const Matrix& F, Index k) {
    using RowsOfE = Fragment<Scalar, M - EXTRA_ROWS, TM, 8 * DOWN, 1, Config::E_MODE, Config::E_GROUP>;
    using ColumnsOfF = Fragment<Scalar, N - EXTRA_COLUMNS, TN, 8 * ACROSS, 1, GRAM ? Config::E_MODE : Config::F_MODE,
                                GRAM ? Config::E_GROUP : Config::F_GROUP>;
    constexpr Index BLOCK_K = K_GROUPS * BK;
    int down, across;
    const int lane = threadIdx.x % 32;
    tile_of(threadIdx.x % S / 32, down, across);
#pragma unroll
    for (int i = 0; i < OUT; ++i) acc[i] = 0;
    for (Index first = blockIdx.x * BLOCK_K; first < k; first += gridDim.x * BLOCK_K) {
      const Index end = first + BLOCK_K < k ? first + BLOCK_K : k;
#pragma unroll 1
      for (Index at = first + threadIdx.x / S; at < end; at += BS / S) {
        RowsOfE e;
        e.read_one(E.first + at * E.k_stride, down * 8 + lane / 4, E.outer_stride);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          ColumnsOfF f;
          f.read_one(F.first + at * F.k_stride, across * 8 + lane % 4 * 2 + side, F.outer_stride);
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
