// The two 16-bit floating-point types: their bits and conversions. cuda_fp16.h and cuda_bf16.h offer much more, and
// take longer to compile than most kernels here. PTX ISA, "Data Movement and Conversion Instructions: cvt".
#pragma once

namespace matmill {

struct alignas(2) Half {
  unsigned short bits;

  __device__ __forceinline__ float widened() const {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
  }

  // Either half of a word. One asm block, so that the compiler does not unpack the word first.
  static __device__ __forceinline__ float lower(unsigned pair) {
    float wide;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(wide) : "r"(pair));
    return wide;
  }

  static __device__ __forceinline__ float upper(unsigned pair) {
    float wide;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(wide) : "r"(pair));
    return wide;
  }

  static __device__ __forceinline__ Half rounded(float wide) {
    Half narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(wide));
    return narrow;
  }
};

struct alignas(2) BFloat {
  unsigned short bits;

  // A bfloat16 is the upper half of a float32: widening is a shift.
  __device__ __forceinline__ float widened() const { return __uint_as_float(unsigned(bits) << 16); }

  static __device__ __forceinline__ float lower(unsigned pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float upper(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

  static __device__ __forceinline__ BFloat rounded(float wide) {
    BFloat narrow;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(wide));
#else
    // To nearest, ties to even. A NaN is handled apart: the carry would make it infinite.
    const unsigned bits = __float_as_uint(wide);
    narrow.bits = wide != wide ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
    return narrow;
  }
};

}  // namespace matmill
