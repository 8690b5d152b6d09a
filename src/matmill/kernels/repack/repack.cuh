// Repacks matrices whose rows or columns are not 16-byte aligned, so that kernels can load 16 bytes at a time.
//
//   A, B, any strides ── vectors that are shifted, or elements ──▶ 16 bytes of a row ──▶ [matrix][row][pitch]
//
// A row here runs along the dimension in which the matrix is (nearly) contiguous, or in which the kernel wants it. Zeros
// fill its last 16 bytes: they meet zeros of the other matrix and add nothing. What is behind them up to the pitch is
// neither written nor read. Each thread writes one vector of the copy, in thread order; where the elements of a row are
// apart and those of a column are not, in the order of columns, so that neighbouring threads read neighbouring elements.
#pragma once

#include "kernels/shared/realign.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// Writes vector `index` of the copy of `rows` rows of `length` elements from each matrix of a batch. Strides are in
// elements. Contiguous elements that start anywhere come from the two aligned vectors that hold them, if these are inside
// the matrix, what is between its rows included.
template <class Scalar>
__device__ __forceinline__ void repack_vector(const Scalar* from, Scalar* to, unsigned index, int pitch, unsigned rows,
                                              int length, long long row_stride, long long stride,
                                              long long batch_stride) {
  constexpr int SIZE = int(sizeof(Scalar)), V = 16 / SIZE;
  using Bits = typename Word<SIZE>::Type;
  const unsigned pieces = unsigned(length + V - 1) / V;
  const bool by_columns = stride != 1 && row_stride == 1;
  const unsigned matrix = index / (pieces * rows), within = index - matrix * pieces * rows;
  const unsigned row = by_columns ? within % rows : within / pieces;
  const int first = int(by_columns ? within / rows : within - row * pieces) * V, left = length - first;
  const long long offset = row * row_stride + first * stride;
  from += matrix * batch_stride;
  const Scalar* const own = from + offset;
  const unsigned shift = reinterpret_cast<unsigned long long>(own) % 16;
  const bool inside =
      row_stride >= 0 && offset * SIZE >= shift && offset + 2 * V - shift / SIZE <= (rows - 1) * row_stride + length;
  alignas(16) Bits bits[V] = {};
  if (stride == 1 && left >= V && (shift == 0 || inside)) {
    const uint4* const low = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(own) - shift);
    *reinterpret_cast<uint4*>(bits) = shift == 0 ? low[0] : realigned(low[0], low[1], shift);
  } else {
    // Past the end it loads the last element again, so that no load waits for a branch.
#pragma unroll
    for (int v = 0; v < V; ++v) bits[v] = *reinterpret_cast<const Bits*>(&own[min(v, left - 1) * stride]);
#pragma unroll
    for (int v = 0; v < V; ++v) bits[v] = v < left ? bits[v] : Bits(0);
  }
  Scalar* const target = to + ((long long)matrix * rows + row) * pitch + first;
  *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(bits);
}

}  // namespace matmill
