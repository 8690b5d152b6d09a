// V consecutive k of T lines (rows of E, columns of F) of one matrix, in registers, loaded as widely as its layout lets.
//
//   ALONG_K  k is contiguous: T lines of V elements, V / WIDTH loads each
//   PACKED   all lines of one k are neighbours and the k's too: V * T elements in one run, V * T / WIDTH loads
//   STRIDED  anything else: V * T loads of one element
#pragma once

#include "matmill/word.cuh"

namespace matmill {

enum { ALONG_K, PACKED, STRIDED, SHIFTED };

// WIDTH elements from p in one load. Nothing is read twice: the hint keeps L2 for what is.
template <int WIDTH, class T>
__device__ __forceinline__ void load(T* to, const T* p) {
  using Bits = typename Word<WIDTH * sizeof(T)>::Type;
  *reinterpret_cast<Bits*>(to) = __ldcs(reinterpret_cast<const Bits*>(p));
}

template <class T, int LINES, int V, int MODE, int WIDTH>
struct Piece {
  static_assert(V % WIDTH == 0 && sizeof(T) * WIDTH <= 16, "whole loads");
  alignas(16) T x[LINES * V];

  // From p, the first line at the first k. Lines beyond `last` repeat it: their sums go nowhere.
  __device__ __forceinline__ void read(const T* p, long long line_stride, long long k_stride, int last) {
    if constexpr (MODE == PACKED) {
#pragma unroll
      for (int i = 0; i < LINES * V; i += WIDTH) load<WIDTH>(&x[i], p + i);
    } else {
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        const T* from = p + (line < last ? line : last) * line_stride;
        if constexpr (MODE == ALONG_K) {
#pragma unroll
          for (int i = 0; i < V; i += WIDTH) load<WIDTH>(&x[line * V + i], from + i);
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) load<1>(&x[line * V + i], from + i * k_stride);
        }
      }
    }
  }

  __device__ __forceinline__ T at(int line, int i) const {
    return MODE == PACKED ? x[i * LINES + line] : x[line * V + i];
  }
};

}  // namespace matmill
