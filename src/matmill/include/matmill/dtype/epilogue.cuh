// Types and the scalar epilogue that follow from the translation unit's element type Scalar.
#pragma once

#include "matmill/dtype/number.cuh"

// Offsets and k: a matrix may hold more than 2^31 elements.
using Index = long long;
using Number = matmill::NumberOf<Scalar>;
using Acc = Number::Acc;

namespace matmill {

// alpha * sum + beta * (element of C). read_c() loads that element; it is not called where beta is 0, as C may then
// hold NaN or not exist.
template <class ReadC>
__device__ __forceinline__ Scalar output_of(Acc alpha, Acc sum, Acc beta, ReadC read_c) {
  Acc d = alpha * sum;
  if (beta != 0) d += beta * Number::up(read_c());
  return Number::down(d);
}

}  // namespace matmill
