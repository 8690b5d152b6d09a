// Per element type: the accumulator type Acc, and the conversions up (to Acc) and down (from Acc).
#pragma once

#include "matmill/dtype/half.cuh"
#include "matmill/dtype/single.cuh"

namespace matmill {

// alpha * x + beta * y, where beta * y is rounded and alpha * x is fused into the sum. Spelled out, because the
// compiler may fuse either product.
__device__ __forceinline__ float blend(float alpha, float x, float beta, float y) {
  return __fmaf_rn(alpha, x, __fmul_rn(beta, y));
}
__device__ __forceinline__ double blend(double alpha, double x, double beta, double y) {
  return __fma_rn(alpha, x, __dmul_rn(beta, y));
}
__device__ __forceinline__ unsigned blend(unsigned alpha, unsigned x, unsigned beta, unsigned y) {
  return alpha * x + beta * y;
}

// float and double accumulate in their own type.
template <class T>
struct NumberOf {
  using Acc = T;
  static __device__ __forceinline__ Acc up(T x) { return x; }
  static __device__ __forceinline__ T down(Acc x) { return x; }
};

template <class T, class Wide>
struct Narrow {
  using Acc = Wide;
  static __device__ __forceinline__ Acc up(T x) { return x.widened(); }
  static __device__ __forceinline__ T down(Acc x) { return T::rounded(x); }
};

// Integers wrap around: unsigned arithmetic defines that.
template <class T>
struct Wrapping {
  using Acc = unsigned;
  static __device__ __forceinline__ unsigned up(T x) { return unsigned(int(x)); }
  static __device__ __forceinline__ T down(unsigned x) { return T(x); }
};

template <>
struct NumberOf<signed char> : Wrapping<signed char> {};
template <>
struct NumberOf<int> : Wrapping<int> {};
template <>
struct NumberOf<Half> : Narrow<Half, float> {};
template <>
struct NumberOf<BFloat> : Narrow<BFloat, float> {};
template <>
struct NumberOf<Single> : Narrow<Single, double> {};

}  // namespace matmill
