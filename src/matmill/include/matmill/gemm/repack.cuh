// Repacks 16-bit matrices whose rows or columns are not 16-byte aligned, so that kernels can load 16 bytes at a time.
//
//   A, B, any strides ── 1, 2, 4 or 8 elements per load ──▶ 8 elements of a row ── 16 bytes ──▶ [matrix][row][pitch]
//
// A row here runs along the dimension in which the matrix is (nearly) contiguous. The pitch is the row's length rounded
// up to 8 elements. Zeros fill the rest: they meet zeros of the other matrix and add nothing. Each thread writes one
// vector of the copy, in thread order. At memory speed an H200 has some 200 issue slots per vector, so the code is
// simple.
#pragma once

#include "matmill/word.cuh"

namespace matmill {

// Reads 8 elements, COUNT per load.
template <int COUNT, class Scalar>
__device__ __forceinline__ void read_vector(unsigned (&words)[4], const Scalar* from) {
  alignas(16) Scalar x[8];
#pragma unroll
  for (int v = 0; v < 8; v += COUNT) copy<COUNT>(&x[v], &from[v]);
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = x[2 * w].bits | unsigned(x[2 * w + 1].bits) << 16;
}

// Writes vector `index` of the copy of `rows` rows of `length` elements from each matrix of a batch. Strides are in
// elements. Every row starts at a multiple of `width` elements; width is 1 where elements are not contiguous.
template <class Scalar>
__device__ __forceinline__ void repack_vector(const Scalar* from, Scalar* to, unsigned index, unsigned rows, int length,
                                              long long row_stride, long long stride, long long batch_stride,
                                              int width) {
  constexpr int V = 8;
  const unsigned pieces = unsigned(length + V - 1) / V, row = index / pieces, matrix = row / rows;
  const int first = int(index - row * pieces) * V, left = length - first;
  from += matrix * batch_stride + (row - matrix * rows) * row_stride + first * stride;
  alignas(16) unsigned words[4];
  if (left >= V && stride == 1) {
    if (width == 8) {
      read_vector<8>(words, from);
    } else if (width == 4) {
      read_vector<4>(words, from);
    } else if (width == 2) {
      read_vector<2>(words, from);
    } else {
      read_vector<1>(words, from);
    }
  } else {
    unsigned bits[V];
    // Past the end it loads the last element again, so that no load waits for a branch.
#pragma unroll
    for (int v = 0; v < V; ++v) bits[v] = from[min(v, left - 1) * stride].bits;
#pragma unroll
    for (int v = 0; v < V; v += 2) words[v / 2] = (v < left ? bits[v] : 0) | (v + 1 < left ? bits[v + 1] << 16 : 0);
  }
  copy<4>(reinterpret_cast<unsigned*>(to + (long long)index * V), words);
}

}  // namespace matmill
