// What follows from the element type of a translation unit: the type of its sums, and how an output is made of one.
#pragma once

#include "matmill/dtype/number.cuh"

// Offsets and k: a matrix may hold more than 2^31 elements.
using Index = long long;
using Number = matmill::NumberOf<Scalar>;
using Acc = Number::Acc;

namespace matmill {

// One output: a scaled product and beta times an element of C. `given()` reads that, and is not called for a beta of 0:
// it may be NaN then, or not exist.
template <class Given>
__device__ __forceinline__ Scalar output_of(Acc alpha, Acc sum, Acc beta, Given given) {
  Acc d = alpha * sum;
  if (beta != 0) d += beta * Number::up(given());
  return Number::down(d);
}

}  // namespace matmill
