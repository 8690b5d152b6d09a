// What rungs on wgmma share: a k-step of tiles in shared memory, its position in a pipeline, and a warp group's tile of
// sums with both of its epilogues.
//
// Matrices are packed row-major, so A is K-major and B is MN-major. TMA copies boxes of 64 x 64 elements, whose rows
// have 128 bytes: the length of the swizzle. It zero-fills what is outside A or B, and stores nothing outside D, so that
// no size needs to be a multiple of a tile.
#pragma once

#include "matmill/dtype/number.cuh"
#include "kernels/shared/pipeline_slot.cuh"
#include "matmill/ptx/barrier.cuh"
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/stmatrix.cuh"
#include "matmill/ptx/tma.cuh"
#include "matmill/ptx/wgmma.cuh"

namespace matmill {

constexpr int BOX_BYTES = 64 * 128;  // 64 rows of 64 elements

// A k-step in shared memory: A [BM][64 k], then B in boxes of [64 k][64 columns]. Its address is a multiple of 1024.
template <int BM_, int BN_>
struct TileStage {
  static constexpr int BM = BM_, BN = BN_, BK = 64;
  static constexpr int A_BYTES = BM * BK * 2, BYTES = A_BYTES + BN * BK * 2;
  static_assert(BM % 64 == 0 && BN % 64 == 0, "tiles consist of boxes");

  // One thread starts the copies of a k-step into `stage`; the phase of `full` waits for their bytes.
  static __device__ __forceinline__ void load(unsigned stage, unsigned full, const TensorMap* a, const TensorMap* b,
                                              int row, int column, int k) {
    ptx::mbarrier_arrive_expect_tx(full, BYTES);
#pragma unroll
    for (int i = 0; i < BM / 64; ++i) ptx::tma_load_2d(stage + i * BOX_BYTES, a, full, k, row + 64 * i);
#pragma unroll
    for (int i = 0; i < BN / 64; ++i) {
      ptx::tma_load_2d(stage + A_BYTES + i * BOX_BYTES, b, full, column + 64 * i, k);
    }
  }
};

// ROWS x BN sums of a warp group, in 64 rows at a time as wgmma has them.
template <class Scalar, int ROWS, int BN>
struct WarpgroupTile {
  static constexpr int PARTS = ROWS / 64;
  static_assert(PARTS * 64 == ROWS && BN % 64 == 0, "wgmma has 64 rows, boxes have 64 columns");

  float sums[PARTS][BN / 2];

  // Starts the products of a k-step as one group: the warp group's rows of A times all of B. The first k-step of a tile
  // ignores the old sums.
  __device__ __forceinline__ void multiply(unsigned a, unsigned b, bool first) {
    const unsigned long long in_a = ptx::k_major_descriptor<128>(a);
    const unsigned long long in_b = ptx::mn_major_descriptor<128>(b, BOX_BYTES);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        ptx::wgmma<Scalar, false, true>(sums[p], ptx::later(in_a, p * BOX_BYTES + 32 * i),
                                        ptx::later(in_b, 16 * 128 * i), !first || i > 0);
      }
    }
    ptx::wgmma_commit();
  }

  // Waits for all products.
  __device__ __forceinline__ void finish() {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int p = 0; p < PARTS; ++p) ptx::wgmma_pin(sums[p]);
  }

  // D = alpha * sums + beta * C from registers: a lane stores two adjacent elements, so a warp writes 16 bytes to each
  // of eight rows. The tile starts at (row, column) of D, whose columns are a multiple of 8. C is not read where beta is
  // 0, since it may hold NaN.
  __device__ __forceinline__ void store_pairs(const Scalar* C, Scalar* D, int row, int column, int m, int n,
                                              float alpha, float beta) const {
    if (beta == 0.0f) {
      write_pairs<false>(C, D, row, column, m, n, alpha, beta);
    } else {
      write_pairs<true>(C, D, row, column, m, n, alpha, beta);
    }
  }

  // The same by TMA: stmatrix writes the results to `staging`, PARTS * BN / 64 boxes swizzled as the map of D says, and
  // one thread of the warp group stores the boxes. `barrier` is a named barrier of its own. Shared memory must outlive
  // the stores: finish_stores().
  __device__ __forceinline__ void store_boxes(unsigned staging, int barrier, const TensorMap* d, const Scalar* C,
                                              int row, int column, int m, int n, float alpha, float beta) const {
    const bool stores = threadIdx.x % 128 == 0;
    if (stores) ptx::bulk_wait_read<0>();  // of the tile before
    ptx::barrier_sync<128>(barrier);
    if (beta == 0.0f) {
      stage<false>(staging, C, row, column, m, n, alpha, beta);
    } else {
      stage<true>(staging, C, row, column, m, n, alpha, beta);
      ptx::fence_proxy_async_global();  // D may be C, which this thread has read
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync<128>(barrier);
    if (!stores) return;
#pragma unroll
    for (int i = 0; i < PARTS * BN / 64; ++i) {
      const int p = i / (BN / 64), j = i % (BN / 64);
      ptx::tma_store_2d(d, staging + i * BOX_BYTES, column + 64 * j, row + 64 * p);
    }
    ptx::bulk_commit();
  }

  // Waits until store_boxes() has read shared memory.
  static __device__ __forceinline__ void finish_stores() {
    if (threadIdx.x % 128 == 0) ptx::bulk_wait_read<0>();
  }

 private:
  template <bool READS_C>
  __device__ __forceinline__ void write_pairs(const Scalar* C, Scalar* D, int row, int column, int m, int n,
                                              float alpha, float beta) const {
    const int lane = threadIdx.x % 32, first = row + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = first + 64 * p + 8 * half;
        if (r >= m) continue;
        const size_t start = size_t(r) * n;
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
          const int c = column + 8 * j + lane % 4 * 2;
          if (c >= n) continue;
          const unsigned old = READS_C ? *reinterpret_cast<const unsigned*>(&C[start + c]) : 0;
          *reinterpret_cast<unsigned*>(&D[start + c]) = result<READS_C>(p, 4 * j + 2 * half, old, alpha, beta);
        }
      }
    }
  }

  template <bool READS_C>
  __device__ __forceinline__ void stage(unsigned staging, const Scalar* C, int row, int column, int m, int n,
                                        float alpha, float beta) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, r = 16 * warp + lane % 16;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
      for (int j = 0; j < BN / 16; ++j) {
        unsigned pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int down = row + 64 * p + 16 * warp + lane / 4 + 8 * (i % 2);
          const int across = column + 16 * j + 8 * (i / 2) + lane % 4 * 2;
          const bool inside = READS_C && down < m && across < n;
          const unsigned old = inside ? *reinterpret_cast<const unsigned*>(&C[size_t(down) * n + across]) : 0;
          pairs[i] = result<READS_C>(p, 8 * j + 2 * i, old, alpha, beta);
        }
        // Lane q has the address of row q % 16 and 8 columns from 8 (q / 16) on: 16 bytes, which the swizzle moves.
        const int chunk = 2 * (j % 4) + lane / 16;
        ptx::stmatrix<false>(staging + (p * (BN / 64) + j / 4) * BOX_BYTES + r * 128 + (chunk ^ r % 8) * 16, pairs);
      }
    }
  }

  // Two adjacent results, rounded, from sums i and i + 1 of part p and, in `old`, two elements of C.
  template <bool READS_C>
  __device__ __forceinline__ unsigned result(int p, int i, unsigned old, float alpha, float beta) const {
    const float x = sums[p][i], y = sums[p][i + 1];
    if constexpr (!READS_C) return ptx::rounded_pair(Scalar(), alpha * x, alpha * y);
    return ptx::rounded_pair(Scalar(), blend(alpha, x, beta, Scalar::lower(old)),
                             blend(alpha, y, beta, Scalar::upper(old)));
  }
};

}  // namespace matmill
