// A warp's WM x WN tile of accumulators in registers: mma into it, and a direct store.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/ptx/mma.cuh"

namespace matmill {

template <class Scalar, bool ACC16, int WM, int WN>
struct WarpTile {
  static constexpr int TM = WM / 16, TN = WN / 8, STEP = 16;  // STEP: k of a fragment
  static_assert(TM * 16 == WM && TN * 8 == WN && TN % 2 == 0, "one ldmatrix.x4 loads two n8 tiles of B");

  // 16 x 16 of A for each i; 16 x 16 of B, two adjacent n8 tiles, for each j.
  struct Fragment {
    unsigned a[TM][4], b[TN / 2][4];
  };

  ptx::Accumulator<ACC16> sums[TM][TN];

  __device__ __forceinline__ void multiply(const Fragment& f, int = 0) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int jj = 0; jj < TN; ++jj) {
        const int j = i % 2 ? TN - 1 - jj : jj;  // back and forth: consecutive mma share an operand
        ptx::mma_16x8x16<Scalar>(sums[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  static __device__ __forceinline__ unsigned pair(float lower, float upper) {
    return Scalar::rounded(lower).bits | unsigned(Scalar::rounded(upper).bits) << 16;
  }

  // D = alpha * sums + beta * C for packed matrices of n columns; the tile's first element is at `first`. A lane stores
  // its two adjacent sums in one word, so a warp writes 16 bytes to each of eight rows.
  __device__ __forceinline__ void store_pairs(const Scalar* C, Scalar* D, size_t first, int n, float alpha,
                                              float beta) const {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const size_t row = first + size_t(i * 16 + half * 8 + lane / 4) * n + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          float x[2] = {alpha * sums[i][j][half * 2], alpha * sums[i][j][half * 2 + 1]};
          if (beta != 0.0f) {  // beta = 0 must not read C: it may hold NaN
            const unsigned old = *reinterpret_cast<const unsigned*>(&C[row + j * 8]);
            x[0] = blend(alpha, sums[i][j][half * 2], beta, Scalar::lower(old));
            x[1] = blend(alpha, sums[i][j][half * 2 + 1], beta, Scalar::upper(old));
          }
          *reinterpret_cast<unsigned*>(&D[row + j * 8]) = pair(x[0], x[1]);
        }
      }
    }
  }
};

}  // namespace matmill
