// Repacks matrices whose rows or columns are not 16-byte aligned, so that kernels can load 16 bytes at a time.
//
//   A, B, any strides ── 1 to 16 bytes per load ──▶ 16 bytes of a row ──▶ [matrix][row][pitch]
//
// A row here runs along the dimension in which the matrix is (nearly) contiguous, or in which the kernel wants it. Zeros
// fill its last 16 bytes: they meet zeros of the other matrix and add nothing. What is behind them up to the pitch is
// neither written nor read. Each thread writes one vector of the copy, in thread order; where the elements of a row are
// apart and those of a column are not, in the order of columns, so that neighbouring threads read neighbouring elements.
// At memory speed an H200 has some 200 issue slots per vector, so the code is simple.
#pragma once

#include "matmill/word.cuh"

namespace matmill {

// Writes vector `index` of the copy of `rows` rows of `length` elements from each matrix of a batch. Strides are in
// elements. Every row starts at a multiple of `width` elements; width is 1 where elements are not contiguous.
template <class Scalar>
__device__ __forceinline__ void repack_vector(const Scalar* from, Scalar* to, unsigned index, int pitch, unsigned rows,
                                              int length, long long row_stride, long long stride,
                                              long long batch_stride, int width) {
  constexpr int V = 16 / int(sizeof(Scalar));
  using Bits = typename Word<sizeof(Scalar)>::Type;
  const unsigned pieces = unsigned(length + V - 1) / V;
  const bool by_columns = stride != 1 && row_stride == 1;
  const unsigned matrix = index / (pieces * rows), within = index - matrix * pieces * rows;
  const unsigned row = by_columns ? within % rows : within / pieces;
  const int first = int(by_columns ? within / rows : within - row * pieces) * V, left = length - first;
  from += matrix * batch_stride + row * row_stride + first * stride;
  alignas(16) Bits bits[V] = {};
  if (left >= V && stride == 1 && width > 1) {
    if (width >= V) {
      copy<V>(reinterpret_cast<Scalar*>(bits), from);
    } else if (width == V / 2) {
#pragma unroll
      for (int v = 0; v < V; v += V / 2) copy<V / 2>(reinterpret_cast<Scalar*>(&bits[v]), from + v);
    } else {
#pragma unroll
      for (int v = 0; v < V; v += 2) copy<2>(reinterpret_cast<Scalar*>(&bits[v]), from + v);
    }
  } else {
    // Past the end it loads the last element again, so that no load waits for a branch.
#pragma unroll
    for (int v = 0; v < V; ++v) bits[v] = *reinterpret_cast<const Bits*>(&from[min(v, left - 1) * stride]);
#pragma unroll
    for (int v = 0; v < V; ++v) bits[v] = v < left ? bits[v] : Bits(0);
  }
  Scalar* const target = to + ((long long)matrix * rows + row) * pitch + first;
  *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(bits);
}

}  // namespace matmill
