// float32 numbers as sums of two tf32 numbers: see inner/mma.cuh for the products of such sums.
#pragma once

namespace matmill {

// SCALE times a float32, as the sum of two tf32 numbers; high is rounded to nearest at 11 bits. Integer instructions
// round: the float ones of Veltkamp's method are no more in number, but products took 20% longer on an H200, where they
// share the operand path with mma.
struct Split {
  static constexpr unsigned KEPT = 0xffffe000u, HALF = 0x1000u;
  static constexpr float SCALE = 4096;

  unsigned high, low;

  __device__ __forceinline__ explicit Split(float number) {
    const float x = SCALE * number;
    high = (__float_as_uint(x) + HALF) & KEPT;
    low = __float_as_uint(x - __uint_as_float(high));
  }
  __device__ __forceinline__ Split() {}
};

}  // namespace matmill
