// An operand of an inner product.
#pragma once

#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// E or F: its first element, and its strides in elements. outer_stride goes from one row of E, or column of F, to the
// next; k_stride goes along k.
struct Matrix {
  const Scalar* first;
  Index outer_stride, k_stride;
};

}  // namespace matmill
