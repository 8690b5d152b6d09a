// Integers that only products have: 8 bits without a sign, and 64 bits.
#pragma once

#include "matmill/dtype/number.cuh"

namespace matmill {

__device__ __forceinline__ unsigned long long blend(unsigned long long alpha, unsigned long long x,
                                                    unsigned long long beta, unsigned long long y) {
  return alpha * x + beta * y;
}

template <>
struct NumberOf<unsigned char> : Wrapping<unsigned char> {};

template <>
struct NumberOf<long long> {
  using Acc = unsigned long long;
  static __device__ __forceinline__ Acc up(long long x) { return Acc(x); }
  static __device__ __forceinline__ long long down(Acc x) { return static_cast<long long>(x); }
};

}  // namespace matmill
