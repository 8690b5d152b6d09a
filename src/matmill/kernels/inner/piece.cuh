// V consecutive k of T rows of E or columns of F, in registers, with loads as wide as the layout allows. "outer" counts
// rows of E or columns of F.
//
//   ALONG_K  k is contiguous: T runs of V elements, V / WIDTH loads each
//   PACKED   rows (columns) of one k are adjacent, and so are the k's: one run of V * T elements, V * T / WIDTH loads
//   STRIDED  anything else: V * T loads of one element
#pragma once

#include "matmill/dtype/word.cuh"

namespace matmill {

enum { ALONG_K, PACKED, STRIDED, SHIFTED };

// Loads WIDTH elements from p at once. Nothing is read twice: the streaming hint leaves L2 to other data.
template <int WIDTH, class T>
__device__ __forceinline__ void load(T* to, const T* p) {
  using Bits = typename Word<WIDTH * sizeof(T)>::Type;
  *reinterpret_cast<Bits*>(to) = __ldcs(reinterpret_cast<const Bits*>(p));
}

template <class T, int OUTER, int V, int MODE, int WIDTH>
struct Piece {
  static_assert(V % WIDTH == 0 && sizeof(T) * WIDTH <= 16, "V is a multiple of the load width, at most 16 bytes");
  alignas(16) T x[OUTER * V];

  // Reads from p, the first outer index at the first k. Indices beyond `last` repeat it; their sums are discarded.
  __device__ __forceinline__ void read(const T* p, long long outer_stride, long long k_stride, int last) {
    if constexpr (MODE == PACKED) {
#pragma unroll
      for (int i = 0; i < OUTER * V; i += WIDTH) load<WIDTH>(&x[i], p + i);
    } else {
#pragma unroll
      for (int outer = 0; outer < OUTER; ++outer) {
        const T* from = p + (outer < last ? outer : last) * outer_stride;
        if constexpr (MODE == ALONG_K) {
#pragma unroll
          for (int i = 0; i < V; i += WIDTH) load<WIDTH>(&x[outer * V + i], from + i);
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) load<1>(&x[outer * V + i], from + i * k_stride);
        }
      }
    }
  }

  __device__ __forceinline__ T at(int outer, int i) const {
    return MODE == PACKED ? x[i * OUTER + outer] : x[outer * V + i];
  }
};

}  // namespace matmill
