// D = sum over k of E's column times F's row, for few rows of E and few columns of F, all of them in one block's hands.
//
//   direct   global E, F ── loads of up to 16 bytes, U pieces at once ──▶ registers ──▶ acc[TM][TN]
//   staged   global E, F ── cp.async, STAGES deep ──▶ shared [BK of every line] ──▶ registers ──▶ acc[TM][TN]
//
// S = DOWN * ACROSS threads share a piece of V consecutive k and take TM rows and TN columns each; the block's BS / S
// groups of them, and the blocks, take pieces in turns. Direct, what the S threads have in common comes from L1; staged,
// every element crosses from L2 once, whatever the layout, and what is in flight needs no registers.
//
// Staged, per stage t (one barrier each):
//
//   wait until stage t has landed, barrier ─▶ issue stage t + STAGES - 1 into the place that t - 1 left ─▶ multiply t
//
// The barrier both publishes stage t and proves that all threads are done with stage t - 1. The main loop runs while
// whole stages are left to be issued; the last ones, whose copies are short, have a loop of their own.
//
// GRAM: F is E's transpose. E is read once, and only the tiles on and above the diagonal are written.
#pragma once

#include "matmill/inner/fragments.cuh"
#include "matmill/inner/matrix.cuh"
#include "matmill/inner/stage.cuh"
#include "matmill/inner/block_reduce.cuh"

namespace matmill {

// The largest power of two that is at most a and at most b, and at least 1.
constexpr int power_of_two(int a, int b) {
  int found = 1;
  while (2 * found <= a && 2 * found <= b) found *= 2;
  return found;
}

template <class Config_>
struct InnerProduct {
  using Config = Config_;
  static constexpr int M = Config::M, N = Config::N, TM = Config::TM, TN = Config::TN;
  static constexpr int DOWN = Config::DOWN, ACROSS = Config::ACROSS, V = Config::V, BS = Config::BS;
  static constexpr bool GRAM = Config::GRAM != 0, STAGED = Config::BK != 0;
  static constexpr int TILES = GRAM ? DOWN * (DOWN + 1) / 2 : DOWN * ACROSS, S = Config::S;
  static constexpr bool TRIANGLE = GRAM && DOWN == 1;  // one tile, of which the part on and above the diagonal is summed
  static constexpr int GROUPS = BS / S, OUT = TM * TN;
  static_assert(TILES <= S && S <= BS, "every piece has a thread for each tile");
  static_assert((S & (S - 1)) == 0 && BS % S == 0, "S is a power of two that divides BS");
  static_assert(TM * DOWN >= M && TN * ACROSS >= N, "tiles cover D");
  static_assert(!GRAM || (M == N && TM == TN && DOWN == ACROSS), "a Gram matrix is symmetric, and so are its tiles");

  using LinesE = Lines<Scalar, M, TM, DOWN, V, Config::E_MODE, Config::E_GROUP>;
  using LinesF = Lines<Scalar, N, TN, ACROSS, V, GRAM ? Config::E_MODE : Config::F_MODE,
                       GRAM ? Config::E_GROUP : Config::F_GROUP>;
  template <int LINES, int MODE, int WIDTH, int PITCH>  // where nothing is staged, any that is legal
  using StageOf = Stage<Scalar, LINES, STAGED ? Config::BK : 16, STAGED ? MODE : int(ALONG_K), STAGED ? WIDTH : 1,
                        STAGED ? PITCH : 16, BS, true>;
  using StageE = StageOf<M, Config::E_MODE, Config::E_WIDTH, Config::E_PITCH>;
  using StageF = StageOf<N, Config::F_MODE, Config::F_WIDTH, Config::F_PITCH>;
  static constexpr int STAGE_BYTES = StageE::BYTES + (GRAM ? 0 : StageF::BYTES);
  static constexpr int PIPELINE_BYTES = STAGED ? Config::STAGES * STAGE_BYTES : 0;
  using Sum = TileSum<Acc, BS, S, OUT, PIPELINE_BYTES>;
  static constexpr int SUM_BYTES = Sum::BYTES;
  static constexpr int SHARED_BYTES = PIPELINE_BYTES > SUM_BYTES ? PIPELINE_BYTES : SUM_BYTES;

  static constexpr int FEW = 4;  // outputs that spare registers for sums of their own are left for

  Acc acc[OUT] = {};

  // The tile of thread s among S. Where there are rows and columns of tiles, lane ^ 1 has the same rows and lane ^ 2 the
  // same columns: the hardware then merges the quarter-warps of 16-byte reads in pairs (matmill.emulator.banks). A Gram
  // matrix's tiles below the diagonal are summed where there are threads for them, for the sake of that.
  static __device__ __forceinline__ void tile_of(int s, int& down, int& across) {
    if constexpr (GRAM && DOWN * ACROSS > S) {
      down = 0;
      int left = s < TILES ? s : 0;
      while (left >= DOWN - down) left -= DOWN - down++;
      across = down + left;
    } else if constexpr (DOWN % 2 == 0 && ACROSS % 2 == 0) {
      across = s % 2 + s / 4 % (ACROSS / 2) * 2;
      down = s / 2 % 2 + s / (2 * ACROSS) * 2;
    } else if constexpr (DOWN % 2 == 0) {
      across = s / 2 % ACROSS;
      down = s % 2 + s / (2 * ACROSS) * 2;
    } else {
      down = s / ACROSS;
      across = s % ACROSS;
    }
  }

  template <int TERMS>
  __device__ __forceinline__ void multiply(const LinesE& e, const LinesF& f) {
    multiply<TERMS>(e, f, acc);
  }
  template <int TERMS>
  static __device__ __forceinline__ void multiply(const LinesE& e, const LinesF& f, Acc (&sums)[OUT]) {
#pragma unroll
    for (int v = 0; v < TERMS; ++v) {
      Acc rows[TM], columns[TN];  // widened once, not once per product
#pragma unroll
      for (int i = 0; i < TM; ++i) rows[i] = e.wide(i, v);
#pragma unroll
      for (int j = 0; j < TN; ++j) columns[j] = TRIANGLE ? rows[j] : f.wide(j, v);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int jj = 0; jj < TN; ++jj) {
          // Back and forth along the rows: each step then shares one operand register with the step before it.
          const int j = i % 2 ? TN - 1 - jj : jj;
          if (!TRIANGLE || j >= i) sums[i * TN + j] += rows[i] * columns[j];
        }
    }
  }

  __device__ __forceinline__ void run(const Matrix& E, const Matrix& F, Index k, unsigned char* shared) {
    if constexpr (STAGED) {
      run_staged(E, F, k, shared);
    } else {
      run_direct(E, F, k);
    }
  }

  // Calls write(row, column, sum) once for every output, from some thread.
  template <class Write>
  __device__ __forceinline__ void sum(unsigned char* shared, Write write) {
    if constexpr (STAGED && SUM_BYTES > 0) __syncthreads();  // the stages become the place of the sums
    Sum::run(acc, reinterpret_cast<Acc*>(shared), [&](int s, int output, Acc sum) {
      if (TILES < S && DOWN * ACROSS != S && s >= TILES) return;
      int down, across;
      tile_of(s, down, across);
      if (GRAM && down > across) return;
      const int i = output / TN, j = output % TN;
      const int row = LinesE::line(down, i), column = LinesF::line(across, j);
      if (row >= M || column >= N || (TRIANGLE && j < i)) return;
      write(row, column, sum);
      if (GRAM && (TRIANGLE ? i != j : down != across)) write(column, row, sum);
    });
  }

 private:
  __device__ __forceinline__ void run_direct(const Matrix& E, const Matrix& F, Index k) {
    constexpr int U = Config::U;
    int down, across;
    tile_of(threadIdx.x % S, down, across);
    const Index first = Index(blockIdx.x) * GROUPS + threadIdx.x / S, step = Index(gridDim.x) * GROUPS;
    const Index pieces = k / V;

    Index piece = first;
    for (; piece + (U - 1) * step < pieces; piece += U * step) {
      LinesE e[U];
      LinesF f[TRIANGLE ? 1 : U];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const Index at = (piece + u * step) * V;
        e[u].template read<Config::E_WIDTH>(E.first + at * E.k_stride, down, E.line_stride, E.k_stride);
        if constexpr (!TRIANGLE)
          f[u].template read<Config::F_WIDTH>(F.first + at * F.k_stride, across, F.line_stride, F.k_stride);
      }
      if constexpr (OUT <= FEW) {
        // The round's own terms first: few outputs have many terms in one thread, and a long chain rounds more.
        Acc own[OUT] = {};
#pragma unroll
        for (int u = 0; u < U; ++u) multiply<V>(e[u], f[TRIANGLE ? 0 : u], own);
#pragma unroll
        for (int i = 0; i < OUT; ++i) acc[i] += own[i];
      } else {
#pragma unroll
        for (int u = 0; u < U; ++u) multiply<V>(e[u], f[TRIANGLE ? 0 : u]);
      }
    }
    if constexpr (U > 1) {  // what is left, at once as well: one by one each would wait for memory
      LinesE e[U];
      LinesF f[TRIANGLE ? 1 : U];
#pragma unroll
      for (int u = 0; u < U - 1; ++u) {
        const Index at = (piece + u * step) * V;
        if (piece + u * step >= pieces) continue;
        e[u].template read<Config::E_WIDTH>(E.first + at * E.k_stride, down, E.line_stride, E.k_stride);
        if constexpr (!TRIANGLE)
          f[u].template read<Config::F_WIDTH>(F.first + at * F.k_stride, across, F.line_stride, F.k_stride);
      }
#pragma unroll
      for (int u = 0; u < U - 1; ++u) {
        if (piece + u * step < pieces) multiply<V>(e[u], f[TRIANGLE ? 0 : u]);
      }
    }
    if constexpr (V > 1) {
      for (Index at = pieces * V + first; at < k; at += step) {
        LinesE e;
        LinesF f;
        e.read_one(E.first + at * E.k_stride, down, E.line_stride);
        if constexpr (!TRIANGLE) f.read_one(F.first + at * F.k_stride, across, F.line_stride);
        multiply<1>(e, f);
      }
    }
  }

  __device__ __forceinline__ void run_staged(const Matrix& E, const Matrix& F, Index k, unsigned char* shared) {
    constexpr int BK = Config::BK, STAGES = Config::STAGES, PIECES = BK / (V * GROUPS);
    constexpr int F_PITCH = GRAM ? StageE::PITCH : StageF::PITCH;
    // Unrolled as far as an instruction cache of 32 KB holds comfortably, into equal parts.
    constexpr int UNROLL = power_of_two(PIECES, 1024 / (V * OUT));
    static_assert(STAGES >= 2 && PIECES * V * GROUPS == BK, "every group of threads has whole pieces of a stage");
    int down, across, e_at[TM], f_at[TN];
    tile_of(threadIdx.x % S, down, across);
    const int own = int(threadIdx.x) / S * V;  // this thread's first k of a stage
    LinesE::template places<StageE::PITCH>(e_at, down, own, E.first, E.line_stride);
    LinesF::template places<F_PITCH>(f_at, across, own, F.first, F.line_stride);
    const unsigned stages = ptx::shared_address(shared);
    const Index step = Index(gridDim.x) * BK, start = Index(blockIdx.x) * BK;
    StageE e_copy(E.first + start * E.k_stride, E.line_stride, E.k_stride, step);
    StageF f_copy(F.first + start * F.k_stride, F.line_stride, F.k_stride, step);
    Index left = k - start;  // terms from the next stage to be issued on

    unsigned reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    const auto next = [](unsigned& place) { place = place == (STAGES - 1) * STAGE_BYTES ? 0 : place + STAGE_BYTES; };
    const auto landed = [] {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();
    };
    const auto issue = [&](unsigned place) {
      if (left > 0) {
        e_copy.issue(stages + place, left);
        if constexpr (!GRAM) f_copy.issue(stages + place + StageE::BYTES, left);
      }
      // Also where there is nothing left to copy: the groups are counted.
      ptx::cp_async_commit();
      left -= step;
    };
    const auto multiply_piece = [&](int piece) {
      const int kk = piece * GROUPS * V;
      const Scalar* const stage = reinterpret_cast<const Scalar*>(shared + reading);
      LinesE e;
      LinesF f;
      e.template read_stage<StageE::PITCH>(stage, e_at, kk);
      if constexpr (!TRIANGLE) f.template read_stage<F_PITCH>(GRAM ? stage : stage + StageE::ELEMENTS, f_at, kk);
      multiply<V>(e, f);
    };

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) issue(s * STAGE_BYTES);
    // As long as whole stages are left to be issued there is nothing to ask; the last few are multiplied below.
    constexpr int NEEDED = StageE::NEEDED > StageF::NEEDED ? StageE::NEEDED : StageF::NEEDED;
    while (left >= NEEDED) {
      landed();
      e_copy.issue_whole(stages + writing);
      if constexpr (!GRAM) f_copy.issue_whole(stages + writing + StageE::BYTES);
      ptx::cp_async_commit();
      left -= step;
#pragma unroll UNROLL
      for (int piece = 0; piece < PIECES; ++piece) multiply_piece(piece);
      next(writing);
      next(reading);
    }
    for (Index rest = left + (STAGES - 1) * step; rest > 0; rest -= step) {
      landed();
      issue(writing);
#pragma unroll 1
      for (int piece = 0; piece < PIECES; ++piece) multiply_piece(piece);
      next(writing);
      next(reading);
    }
    ptx::cp_async_wait<0>();
  }
};

}  // namespace matmill
