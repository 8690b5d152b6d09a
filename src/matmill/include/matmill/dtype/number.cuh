// What a kernel needs to know of an element type: the type to sum in, and the way there and back.
#pragma once

#include "matmill/dtype/half.cuh"

namespace matmill {

// float and double are summed in their own type.
template <class T>
struct NumberOf {
  using Acc = T;
  static __device__ __forceinline__ Acc up(T x) { return x; }
  static __device__ __forceinline__ T down(Acc x) { return x; }
};

template <class T>
struct Narrow {
  using Acc = float;
  static __device__ __forceinline__ float up(T x) { return x.widened(); }
  static __device__ __forceinline__ T down(float x) { return T::rounded(x); }
};

template <>
struct NumberOf<Half> : Narrow<Half> {};
template <>
struct NumberOf<BFloat> : Narrow<BFloat> {};

}  // namespace matmill
