// The main loop of an inner product on the FMA units: D = E F for few rows of E and few columns of F. One block
// computes all of D for its k.
//
//   direct   global E, F ── loads of up to 16 bytes, U pieces in flight ──▶ registers ──▶ acc[TM][TN]
//   staged   global E, F ── cp.async, STAGES deep ──▶ shared [BK of every row and column] ──▶ registers ──▶ acc[TM][TN]
//
// S = DOWN * ACROSS threads share a piece of V consecutive k and take TM rows and TN columns each. Pieces are
// interleaved over the block's BS / S such groups, and over blocks. Direct: the S threads share data through L1.
// Staged: every element comes from L2 once, whatever the layout, and data in flight needs no registers.
//
// Staged, per stage t (one barrier each):
//
//   wait until stage t has landed, barrier ─▶ issue stage t + STAGES - 1 into the buffer that t - 1 left ─▶ multiply t
//
// The barrier publishes stage t and proves that all threads have finished stage t - 1. The main loop runs while full
// stages are left to issue. The last stages, with partial copies, have a loop of their own.
//
// GRAM: F is E's transpose. E is read once, and only the tiles on and above the diagonal are computed.
#pragma once

#include "kernels/inner/fragments.cuh"
#include "kernels/inner/matrix.cuh"
#include "kernels/inner/stage.cuh"
#include "kernels/inner/block_reduce.cuh"

namespace matmill {

// The largest power of two that is at most a and at most b, and at least 1.
constexpr int power_of_two(int a, int b) {
  int found = 1;
  while (2 * found <= a && 2 * found <= b) found *= 2;
  return found;
}

template <class Config_>
struct SimtMainloop {
  using Config = Config_;
  static constexpr int M = Config::M, N = Config::N, TM = Config::TM, TN = Config::TN;
  static constexpr int DOWN = Config::DOWN, ACROSS = Config::ACROSS, V = Config::V, BS = Config::BS;
  static constexpr bool GRAM = Config::GRAM != 0, STAGED = Config::BK != 0;
  static constexpr int TILES = GRAM ? DOWN * (DOWN + 1) / 2 : DOWN * ACROSS, S = Config::S;
  static constexpr bool TRIANGLE = GRAM && DOWN == 1;  // one tile: only outputs on and above its diagonal
  static constexpr int GROUPS = BS / S, OUT = TM * TN;
  static_assert(TILES <= S && S <= BS, "a group of S threads must have a thread per tile");
  static_assert((S & (S - 1)) == 0 && BS % S == 0, "S is a power of two that divides BS");
  static_assert(TM * DOWN >= M && TN * ACROSS >= N, "tiles must cover D");
  static_assert(!GRAM || (M == N && TM == TN && DOWN == ACROSS), "a Gram matrix needs square tiles");

  using FragmentE = Fragment<Scalar, M, TM, DOWN, V, Config::E_MODE, Config::E_GROUP>;
  using FragmentF = Fragment<Scalar, N, TN, ACROSS, V, GRAM ? Config::E_MODE : Config::F_MODE,
                             GRAM ? Config::E_GROUP : Config::F_GROUP>;
  template <int OUTER, int MODE, int WIDTH, int PITCH>  // unstaged: any legal arguments
  using StageOf = Stage<Scalar, OUTER, STAGED ? Config::BK : 16, STAGED ? MODE : int(ALONG_K), STAGED ? WIDTH : 1,
                        STAGED ? PITCH : 16, BS, true>;
  using StageE = StageOf<M, Config::E_MODE, Config::E_WIDTH, Config::E_PITCH>;
  using StageF = StageOf<N, Config::F_MODE, Config::F_WIDTH, Config::F_PITCH>;
  static constexpr int STAGE_BYTES = StageE::BYTES + (GRAM ? 0 : StageF::BYTES);
  static constexpr int PIPELINE_BYTES = STAGED ? Config::STAGES * STAGE_BYTES : 0;
  using Reduce = BlockReduce<Acc, BS, S, OUT, PIPELINE_BYTES>;
  static constexpr int SUM_BYTES = Reduce::BYTES;
  static constexpr int SHARED_BYTES = PIPELINE_BYTES > SUM_BYTES ? PIPELINE_BYTES : SUM_BYTES;

  static constexpr int FEW_OUTPUTS = 4;  // so few outputs leave registers for partial sums

  Acc acc[OUT] = {};

  // The tile of thread s of S. Where tiles allow it, lane ^ 1 has the same rows and lane ^ 2 the same columns: the
  // hardware then merges the quarter-warps of 16-byte reads in pairs (matmill.emulator.memory.banks). For that, threads
  // compute a Gram matrix's tiles below the diagonal too, where there are enough threads.
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
  __device__ __forceinline__ void multiply(const FragmentE& e, const FragmentF& f) {
    multiply<TERMS>(e, f, acc);
  }
  template <int TERMS>
  static __device__ __forceinline__ void multiply(const FragmentE& e, const FragmentF& f, Acc (&sums)[OUT]) {
#pragma unroll
    for (int v = 0; v < TERMS; ++v) {
      Acc rows[TM], columns[TN];  // widened once, not once per FMA
#pragma unroll
      for (int i = 0; i < TM; ++i) rows[i] = e.wide(i, v);
#pragma unroll
      for (int j = 0; j < TN; ++j) columns[j] = TRIANGLE ? rows[j] : f.wide(j, v);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int jj = 0; jj < TN; ++jj) {
          // Back and forth: consecutive FMAs share an operand register.
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

  // Calls write(row, column, sum) once per output, from any thread.
  template <class Write>
  __device__ __forceinline__ void sum(unsigned char* shared, Write write) {
    if constexpr (STAGED && SUM_BYTES > 0) __syncthreads();  // the stages become the reduction buffer
    Reduce::run(acc, reinterpret_cast<Acc*>(shared), [&](int s, int output, Acc sum) {
      if (TILES < S && DOWN * ACROSS != S && s >= TILES) return;
      int down, across;
      tile_of(s, down, across);
      if (GRAM && down > across) return;
      const int i = output / TN, j = output % TN;
      const int row = FragmentE::outer_index(down, i), column = FragmentF::outer_index(across, j);
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
      FragmentE e[U];
      FragmentF f[TRIANGLE ? 1 : U];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const Index at = (piece + u * step) * V;
        e[u].template read<Config::E_WIDTH>(E.first + at * E.k_stride, down, E.outer_stride, E.k_stride);
        if constexpr (!TRIANGLE)
          f[u].template read<Config::F_WIDTH>(F.first + at * F.k_stride, across, F.outer_stride, F.k_stride);
      }
      if constexpr (OUT <= FEW_OUTPUTS) {
        // Sums the round's terms first: a thread with few outputs has many terms, and a long chain of additions rounds
        // more.
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
    if constexpr (U > 1) {  // the remaining pieces, also in flight together
      FragmentE e[U];
      FragmentF f[TRIANGLE ? 1 : U];
#pragma unroll
      for (int u = 0; u < U - 1; ++u) {
        const Index at = (piece + u * step) * V;
        if (piece + u * step >= pieces) continue;
        e[u].template read<Config::E_WIDTH>(E.first + at * E.k_stride, down, E.outer_stride, E.k_stride);
        if constexpr (!TRIANGLE)
          f[u].template read<Config::F_WIDTH>(F.first + at * F.k_stride, across, F.outer_stride, F.k_stride);
      }
#pragma unroll
      for (int u = 0; u < U - 1; ++u) {
        if (piece + u * step < pieces) multiply<V>(e[u], f[TRIANGLE ? 0 : u]);
      }
    }
    if constexpr (V > 1) {
      for (Index at = pieces * V + first; at < k; at += step) {
        FragmentE e;
        FragmentF f;
        e.read_one(E.first + at * E.k_stride, down, E.outer_stride);
        if constexpr (!TRIANGLE) f.read_one(F.first + at * F.k_stride, across, F.outer_stride);
        multiply<1>(e, f);
      }
    }
  }

  __device__ __forceinline__ void run_staged(const Matrix& E, const Matrix& F, Index k, unsigned char* shared) {
    constexpr int BK = Config::BK, STAGES = Config::STAGES, PIECES = BK / (V * GROUPS);
    constexpr int F_PITCH = GRAM ? StageE::PITCH : StageF::PITCH;
    // Unrolled as far as a 32 KB instruction cache allows, by a power of two.
    constexpr int UNROLL = power_of_two(PIECES, 1024 / (V * OUT));
    static_assert(STAGES >= 2 && PIECES * V * GROUPS == BK, "groups must divide a stage into whole pieces");
    int down, across, e_at[TM], f_at[TN];
    tile_of(threadIdx.x % S, down, across);
    const int own = int(threadIdx.x) / S * V;  // this thread's first k of a stage
    FragmentE::template offsets<StageE::PITCH>(e_at, down, own, E.first, E.outer_stride);
    FragmentF::template offsets<F_PITCH>(f_at, across, own, F.first, F.outer_stride);
    const unsigned stages = ptx::shared_address(shared);
    const Index step = Index(gridDim.x) * BK, start = Index(blockIdx.x) * BK;
    StageE e_copy(E.first + start * E.k_stride, E.outer_stride, E.k_stride, step);
    StageF f_copy(F.first + start * F.k_stride, F.outer_stride, F.k_stride, step);
    Index left = k - start;  // terms from the next stage to issue

    unsigned reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    const auto next = [](unsigned& offset) {
      offset = offset == (STAGES - 1) * STAGE_BYTES ? 0 : offset + STAGE_BYTES;
    };
    const auto wait_for_stage = [] {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();
    };
    const auto issue = [&](unsigned offset) {
      if (left > 0) {
        e_copy.issue(stages + offset, left);
        if constexpr (!GRAM) f_copy.issue(stages + offset + StageE::BYTES, left);
      }
      // Commits even an empty group: cp_async_wait counts groups.
      ptx::cp_async_commit();
      left -= step;
    };
    const auto multiply_piece = [&](int piece) {
      const int kk = piece * GROUPS * V;
      const Scalar* const stage = reinterpret_cast<const Scalar*>(shared + reading);
      FragmentE e;
      FragmentF f;
      e.template read_stage<StageE::PITCH>(stage, e_at, kk);
      if constexpr (!TRIANGLE) f.template read_stage<F_PITCH>(GRAM ? stage : stage + StageE::ELEMENTS, f_at, kk);
      multiply<V>(e, f);
    };

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; ++s) issue(s * STAGE_BYTES);
    // While full stages are left to issue, copies need no checks. The loop below multiplies the last few.
    constexpr int NEEDED = StageE::NEEDED > StageF::NEEDED ? StageE::NEEDED : StageF::NEEDED;
    while (left >= NEEDED) {
      wait_for_stage();
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
      wait_for_stage();
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
