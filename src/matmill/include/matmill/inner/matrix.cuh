// An operand of an inner product.
#pragma once

#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// Where it begins, and its strides in elements: from one row of E or column of F to the next, and along k.
struct Matrix {
  const Scalar* first;
  Index line_stride, k_stride;
};

}  // namespace matmill
