// The main loop of a matrix product on the tensor cores, for 16-bit elements, float32 and float64 in any layout: D tile
// = sum over k of A tile * B tile.
//
//   global ── cp.async, STAGES deep ──▶ shared a, b, swizzled ── ldmatrix or ld ──▶ fragments ── mma ──▶ sums
//
// Pipeline, per k-tile t of STEPS = BK / Warp::STEP steps (one barrier each; fragments of the next step are read while
// one computes):
//
//   all warps   s = 0..        read fragments s+1 of tile t │ issue some copies of tile t+STAGES-1 into the stage that
//                              tile t-1 left │ mma fragments s
//               s = STEPS-1    store this thread's copies that pass through registers │ commit, wait until tile t+1 has
//                              landed, barrier, read its fragments 0 │ mma fragments STEPS-1
//
// cp.async and fragment reads share one queue: if all copies were issued at s = 0, the next fragments would wait behind
// them.
//
// The barrier publishes tile t+1 to all warps. It also proves that every warp has read the last fragments of tile t,
// whose stage the next iteration's copies overwrite.
//
// A tile keeps its matrix's global layout: rows in shared memory run along the contiguous dimension. Fragments are read
// from it directly or transposed, so all four pairs of layouts cost the same. 16-bit elements whose rows are not 4-byte
// aligned, or without cp.async (sm_75), pass through registers: loads are issued at s = 0, so that they have time to
// arrive, and stored at s = STEPS-1. Copies of float32 and float64 need no registers.
#pragma once

#include "kernels/hgemm/mma_copy.cuh"
#include "kernels/hgemm/mma_reader.cuh"
#include "kernels/hgemm/pair_store.cuh"
#include "kernels/shared/raster.cuh"
#include "kernels/shared/result.cuh"
#include "kernels/hgemm/staged_store.cuh"
#include "kernels/hgemm/warp_tile_f32.cuh"
#include "kernels/hgemm/warp_tile_f64.cuh"
#include "matmill/ptx/barrier.cuh"

namespace matmill {

// What depends on the element type: the warp's tile of sums, its stores, the type of alpha and beta, and whether the config
// has the epilogue.
template <class Scalar, class Config, int WM, int WN>
struct MmaTypes {
  static constexpr bool EPILOGUE = false;
  using Acc = float;
  using Warp = WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
  using Store = StagedStore<Scalar, Config::ACC16 != 0, WM, WN, Config::D_VEC>;
};

template <class Config, int WM, int WN>
struct MmaTypes<double, Config, WM, WN> {
  static constexpr bool EPILOGUE = false;
  using Acc = double;
  using Warp = DoubleTile<Config::MMA_K, WM, WN>;
  using Store = PairStore<Warp, double, Config::D_VEC>;
};

template <class Config, int WM, int WN>
struct MmaTypes<float, Config, WM, WN> {
  static constexpr bool EPILOGUE = true;
  using Acc = float;
  using Warp = SplitTile<Config::SUM_K, WM, WN>;
  using Store = PairStore<Warp, float, Config::D_VEC>;
};

// A tile is that of a block, or of the first warps of a larger one.
template <class Scalar, class Config, bool WHOLE_BLOCK = true>
struct MmaGemm {
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, STAGES = Config::STAGES;
  static constexpr int WARPS_N = Config::WARPS_N, WARPS = Config::WARPS_M * WARPS_N, THREADS = WARPS * 32;
  static constexpr int WM = BM / Config::WARPS_M, WN = BN / WARPS_N;
  static constexpr bool A_K_INNER = Config::A_K_INNER != 0, B_K_INNER = Config::B_K_INNER != 0;
  static_assert(WM * Config::WARPS_M == BM && WN * WARPS_N == BN, "warp tiles must cover the block tile");
  static_assert((WM & (WM - 1)) == 0 && (WN & (WN - 1)) == 0,
                "XOR replaces addition: a warp's first piece has zeros where steps have ones");

  using Types = MmaTypes<Scalar, Config, WM, WN>;
  using Warp = typename Types::Warp;
  using Store = typename Types::Store;
  static constexpr int STEPS = BK / Warp::STEP;
  static_assert(STEPS * Warp::STEP == BK && STEPS % 2 == 0, "fragments are double-buffered in registers");
  static_assert(STAGES >= 2, "one stage computes while another is in flight");

  using CopyA = MmaTileCopy<Scalar, BM, BK, THREADS, A_K_INNER, Config::A_VEC, STEPS - 1>;
  using CopyB = MmaTileCopy<Scalar, BN, BK, THREADS, B_K_INNER, Config::B_VEC, STEPS - 1>;
  static constexpr int STAGE = CopyA::BYTES + CopyB::BYTES;  // a stage holds A's tile, then B's
  static constexpr int STAGING = WARPS * Store::WARP_BYTES;
  static constexpr int SHARED_BYTES = STAGES * STAGE > STAGING ? STAGES * STAGE : STAGING;
  static_assert(SHARED_BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");

  Warp warp;
  int row, column;  // of the warp's first output in the block's tile

  __device__ __forceinline__ MmaGemm() {
    const int w = threadIdx.x / 32;
    row = w / WARPS_N * WM;
    column = w % WARPS_N * WN;
  }

  // Waits for the threads of the tile.
  static __device__ __forceinline__ void sync() {
    if constexpr (WHOLE_BLOCK) {
      __syncthreads();
    } else {
      ptx::barrier_sync<THREADS>(0);
    }
  }

  // sums += A tile row * B tile column over all of k. `shared` holds SHARED_BYTES, aligned to 128.
  __device__ __forceinline__ void run(unsigned char* shared, CopyA copy_a, CopyB copy_b, int k) {
    const int tiles = (k + BK - 1) / BK;
    const unsigned stages = ptx::shared_address(shared);
    auto issue = [&](int stage, int copy_step) {
      if (copy_step < CopyA::COPY_STEPS) copy_a.issue(stages + stage, copy_step);
      if (copy_step < CopyB::COPY_STEPS) copy_b.issue(stages + stage + CopyA::BYTES, copy_step);
    };
    auto store_held = [&](int stage) {
      copy_a.store_held(shared + stage);
      copy_b.store_held(shared + stage + CopyA::BYTES);
    };
    // Tiles past the end are zero-filled. Issuing them costs little and keeps the number of groups constant.
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
#pragma unroll
      for (int copy_step = 0; copy_step < STEPS - 1; ++copy_step) issue(s * STAGE, copy_step);
      ptx::cp_async_commit();
      store_held(s * STAGE);
    }
    ptx::cp_async_wait<STAGES - 2>();
    sync();

    const MmaReader<Warp, A_K_INNER, CopyA::ROW_BYTES> reader_a(row, true);
    const MmaReader<Warp, B_K_INNER, CopyB::ROW_BYTES> reader_b(column, false);
    typename Warp::Fragment f[2];
    auto read = [&](typename Warp::Fragment& to, int stage, int s) {
      reader_a.read_a(to, stages + stage, s);
      reader_b.read_b(to, stages + stage + CopyA::BYTES, s);
    };
    int reading = 0, writing = (STAGES - 1) * STAGE;
    read(f[0], reading, 0);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        if (s == STEPS - 1) {
          store_held(writing);
          ptx::cp_async_commit();
          ptx::cp_async_wait<STAGES - 2>();
          sync();
          writing = reading;
          reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
        }
        read(f[(s + 1) % 2], reading, (s + 1) % STEPS);
        if (s < STEPS - 1) issue(writing, s);
        warp.multiply(f[s % 2], s);
      }
    }
    ptx::cp_async_wait<0>();
  }

  // The operands of a block's tile from its first row, column and term on, where in D the tile is, and how many terms.
  struct Work {
    const Scalar *a, *b;
    Origin origin;
    int terms;
  };

  // Ends the sums before they are stored. work() returns what run() multiplied, for the rare case that needs it again.
  template <class GetWork>
  __device__ __forceinline__ void complete(const GetWork& work, long long a_row, long long a_col, long long b_row,
                                           long long b_col, int m, int n) {
    if constexpr (sizeof(Scalar) == 4) {
      if (warp.unscale()) return;
      const Work again = work();
      warp.sum_again(again.a + row * a_row, a_row, a_col, again.b + column * b_col, b_row, b_col,
                     m - again.origin.row - row, n - again.origin.column - column, again.terms);
    }
  }

  // D = alpha * sums + beta * C where the tile is inside m x n. Strides and pointers are those of C and D.
  __device__ __forceinline__ void store(unsigned char* shared, const Scalar* C, long long c_row, long long c_col,
                                        Scalar* D, long long d_row, long long d_col, Origin origin, int m, int n,
                                        typename Types::Acc alpha, typename Types::Acc beta) const {
    Store::store(warp, shared, C, c_row, c_col, D, d_row, d_col, origin.row + row, origin.column + column, m, n, alpha,
                 beta);
  }

  // D = result(sum, row, column) where the tile is inside: see shared/result.cuh.
  template <class Result>
  __device__ __forceinline__ void store_result(const Result& result, Scalar* D, long long d_row, long long d_col,
                                               Origin origin) const {
    Store::store_result(warp, result, D, d_row, d_col, origin.row + row, origin.column + column);
  }

  // The same of the config's epilogue, which only float32 has; others store as store() does. `bias` is that of A and B.
  __device__ __forceinline__ void store_all(unsigned char* shared, const Scalar* C, long long c_row, long long c_col,
                                            const Scalar* bias, long long bias_stride, Scalar* D, long long d_row,
                                            long long d_col, Origin origin, int m, int n, typename Types::Acc alpha,
                                            typename Types::Acc beta) const {
    if constexpr (Types::EPILOGUE) {
      const GemmResult<Scalar, Scalar, Config> result{C, bias, c_row, c_col, bias_stride, alpha, beta, m, n};
      store_result(result, D, d_row, d_col, origin);
    } else {
      store(shared, C, c_row, c_col, D, d_row, d_col, origin, m, n, alpha, beta);
    }
  }

  // Stores the sums of a split-K slice: a matrix of m rows of n at `to`.
  __device__ __forceinline__ void store_partial(typename Types::Acc* to, Origin origin, int m, int n) const {
    Store::store_partial(warp, to, origin.row + row, origin.column + column, m, n);
  }
};

}  // namespace matmill
