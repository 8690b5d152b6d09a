// Packed copies of 16-bit matrices whose lines do not start on 16 bytes, for what reads 16 bytes at a time.
//
//   A, B, any strides ── 1, 2, 4 or 8 elements at a time ──▶ 8 elements of a line ── 16 bytes ──▶ [matrix][line][pitch]
//
// A line runs along the dimension in which the matrix is (nearly) contiguous. The pitch is its length rounded up to 8
// elements, and what is behind its end is zeros: multiplied with the zeros that the other matrix has there, they add
// nothing. A thread makes one vector of a copy, and vectors lie in the order of threads. At the speed of memory an H200
// has some 200 issue slots per vector, so nothing here need be clever.
#pragma once

#include "matmill/word.cuh"

namespace matmill {

// COUNT neighbours at a time, 8 in all.
template <int COUNT, class Scalar>
__device__ __forceinline__ void read_vector(unsigned (&words)[4], const Scalar* from) {
  alignas(16) Scalar x[8];
#pragma unroll
  for (int v = 0; v < 8; v += COUNT) copy<COUNT>(&x[v], &from[v]);
#pragma unroll
  for (int w = 0; w < 4; ++w) words[w] = x[2 * w].bits | unsigned(x[2 * w + 1].bits) << 16;
}

// A vector of the copy of `lines` lines of `length` elements from each matrix of a batch. Strides are in elements. Every
// line starts on a multiple of `width` elements; where elements are not neighbours, the width is 1.
template <class Scalar>
__device__ __forceinline__ void repack_vector(const Scalar* from, Scalar* to, unsigned index, unsigned lines, int length,
                                           long long line_stride, long long stride, long long batch_stride, int width) {
  constexpr int V = 8;
  const unsigned pieces = unsigned(length + V - 1) / V, line = index / pieces, matrix = line / lines;
  const int first = int(index - line * pieces) * V, left = length - first;
  from += matrix * batch_stride + (line - matrix * lines) * line_stride + first * stride;
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
    // Past the end the last element again: no load waits for a branch.
#pragma unroll
    for (int v = 0; v < V; ++v) bits[v] = from[min(v, left - 1) * stride].bits;
#pragma unroll
    for (int v = 0; v < V; v += 2) words[v / 2] = (v < left ? bits[v] : 0) | (v + 1 < left ? bits[v + 1] << 16 : 0);
  }
  copy<4>(reinterpret_cast<unsigned*>(to + (long long)index * V), words);
}

}  // namespace matmill
