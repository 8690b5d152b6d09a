// float32 elements whose products are summed in float64: each product of two of them is exact there.
#pragma once

namespace matmill {

struct Single {
  float value;

  __device__ __forceinline__ double widened() const { return value; }
  static __device__ __forceinline__ Single rounded(double wide) { return {float(wide)}; }
};

}  // namespace matmill
