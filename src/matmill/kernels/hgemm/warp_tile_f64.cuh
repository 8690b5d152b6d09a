// A warp's WM x WN tile of float64 sums in registers: fragments from shared memory, mma into the sums.
//
// Fragments are read 8 bytes at a time: lane 4 g + t reads term t of row or column g. So half a warp reads 4 terms of
// 4 rows or columns, 32 bytes of each of four rows of the tile, whether these run along k or not. With the pieces
// swapped (swizzle_bits) that is every bank once. What reads more at once does not fit:
//
//   ldmatrix        gives a lane 4 bytes of each 16-byte row: half of an element
//   16-byte reads   of two terms of a row: an mma takes rows g and g + 8 of A in adjacent registers. NVRTC 13 moved
//                   about 120 registers per 64 mma for that, and spilled
//
// Issue slots are not short: a tensor core of an H200 takes 32 clocks for an m16n8k8. Per 8 terms a warp reads 64 bytes
// of each of WM rows and WN columns and multiplies for WM * WN / 4 clocks: where a warp has 64 x 32, shared memory
// delivers 48 of 128 bytes in a clock.
#pragma once

#include "kernels/hgemm/mma_reader.cuh"
#include "kernels/shared/swizzle.cuh"
#include "matmill/ptx/ld_shared.cuh"
#include "matmill/ptx/mma.cuh"

namespace matmill {

// MMA_K is the k of one instruction and of a fragment: 4, 8 or 16.
template <int MMA_K, int WM, int WN>
struct DoubleTile {
  static constexpr int TM = WM / 16, TN = WN / 8, STEP = MMA_K;
  static_assert(MMA_K == 4 || MMA_K == 8 || MMA_K == 16, "m16n8 has these three");
  static_assert(TM * 16 == WM && TN * 8 == WN && TN % 2 == 0, "a warp's first row or column is a multiple of 16");

  struct Fragment {
    double a[TM][MMA_K / 2], b[TN][MMA_K / 4];
  };

  double sums[TM][TN][4] = {};

  __device__ __forceinline__ void multiply(const Fragment& f, int) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int jj = 0; jj < TN; ++jj) {
        const int j = i % 2 ? TN - 1 - jj : jj;  // back and forth: consecutive mma share an operand
        ptx::mma_m16n8(sums[i][j], f.a[i], f.b[j]);
      }
    }
  }
};

// A lane's addresses differ by constants, XORed or added, as those of the reader of 16-bit elements do.
template <int MMA_K, int WM, int WN, bool K_INNER, int ROW_BYTES>
struct MmaReader<DoubleTile<MMA_K, WM, WN>, K_INNER, ROW_BYTES> {
  using Warp = DoubleTile<MMA_K, WM, WN>;
  using Fragment = typename Warp::Fragment;
  static constexpr int FOURS = MMA_K / 4;

  unsigned lane;  // of this lane's first element, in bytes from the tile

  // first: the warp's first outer index.
  __device__ __forceinline__ MmaReader(unsigned first, bool) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    lane = K_INNER ? swizzled<ROW_BYTES, 32>(first + g, t / 2) + t % 2 * 8
                   : swizzled<ROW_BYTES, 32>(t, (first + g) / 2) + g % 2 * 8;
  }

  // This lane's term of the four from 4 q on, of its row or column of the eight from 8 o on.
  __device__ __forceinline__ double read(unsigned tile, int o, int q) const {
    const int along = K_INNER ? q * 32 : o * 64, down = (K_INNER ? o * 8 : q * 4) * ROW_BYTES;
    return ptx::ld_shared_f64(tile + (lane ^ along % 128) + along / 128 * 128 + down);
  }

  __device__ __forceinline__ void read_a(Fragment& to, unsigned tile, int s) const {
#pragma unroll
    for (int i = 0; i < Warp::TM; ++i) {
#pragma unroll
      for (int x = 0; x < MMA_K / 2; ++x) to.a[i][x] = read(tile, i * 2 + x % 2, s * FOURS + x / 2);
    }
  }

  __device__ __forceinline__ void read_b(Fragment& to, unsigned tile, int s) const {
#pragma unroll
    for (int j = 0; j < Warp::TN; ++j) {
#pragma unroll
      for (int x = 0; x < FOURS; ++x) to.b[j][x] = read(tile, j, s * FOURS + x);
    }
  }
};

}  // namespace matmill
