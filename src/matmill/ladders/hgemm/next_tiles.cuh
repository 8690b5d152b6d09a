// Register prefetch of the next k-tiles of packed A (m x k) and B (k x n).
//
//   fetch    global ── 16 bytes per load ──▶ registers; then advances to the following tiles
//   put      registers ── 16 bytes per store ──▶ shared a[BM][BK], b[BK][BN], swizzled
#pragma once

#include "kernels/shared/swizzle.cuh"

namespace matmill {

template <class Scalar, int BM, int BN, int BK, int THREADS>
struct NextTiles {
  static constexpr int V = 16 / sizeof(Scalar);                                   // elements per copy
  static constexpr int A_ROW = BK * sizeof(Scalar), B_ROW = BN * sizeof(Scalar);  // bytes
  static constexpr int A_PASS = THREADS * V / BK, B_PASS = THREADS * V / BN;      // rows per pass of all threads

  uint4 held_a[BM / A_PASS], held_b[BK / B_PASS];
  // This thread's first vectors; each further one is A_PASS or B_PASS rows below.
  const Scalar *a_from, *b_from;

  // Starts at the tiles of row row0 and column column0.
  __device__ __forceinline__ NextTiles(const Scalar* A, const Scalar* B, size_t row0, size_t column0, int n, int k) {
    const int thread = threadIdx.x;
    a_from = &A[(row0 + thread * V / BK) * k + thread * V % BK];
    b_from = &B[size_t(thread * V / BN) * n + column0 + thread * V % BN];
  }

  __device__ __forceinline__ void fetch(int n, int k) {
    const Scalar* from = a_from;
#pragma unroll
    for (int s = 0; s < BM / A_PASS; ++s, from += size_t(A_PASS) * k) held_a[s] = *reinterpret_cast<const uint4*>(from);
    from = b_from;
#pragma unroll
    for (int s = 0; s < BK / B_PASS; ++s, from += size_t(B_PASS) * n) held_b[s] = *reinterpret_cast<const uint4*>(from);
    a_from += BK;
    b_from += size_t(BK) * n;
  }

  __device__ __forceinline__ void put(unsigned char* a, unsigned char* b) const {
    const int thread = threadIdx.x;
#pragma unroll
    for (int s = 0; s < BM / A_PASS; ++s) {
      const int i = (s * THREADS + thread) * V;
      *reinterpret_cast<uint4*>(&a[swizzled<A_ROW>(i / BK, i % BK / V)]) = held_a[s];
    }
#pragma unroll
    for (int s = 0; s < BK / B_PASS; ++s) {
      const int i = (s * THREADS + thread) * V;
      *reinterpret_cast<uint4*>(&b[swizzled<B_ROW>(i / BN, i % BN / V)]) = held_b[s];
    }
  }
};

}  // namespace matmill
