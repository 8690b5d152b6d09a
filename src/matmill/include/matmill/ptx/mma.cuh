// Tensor-core instructions of a warp: ldmatrix, and mma.sync on 16-bit elements, tf32 and float64. PTX ISA, "Warp-level
// matrix instructions: ldmatrix" and "mma", with their sections on matrix fragments. ldmatrix and m16n8k8 need sm_75;
// m16n8k16, bfloat16, tf32 and float64 need sm_80; m16n8 on float64 needs sm_90.
//
// Fragments of m16n8k16 in lane 4 g + t:
//
//   A (16 x 16)    columns 2 t, 2 t + 1 of rows g and g + 8; then columns 2 t + 8, 2 t + 9 of the same rows
//   B (16 x 8)     rows 2 t, 2 t + 1 of column g; then rows 2 t + 8, 2 t + 9
//   C, D (16 x 8)  columns 2 t, 2 t + 1 of rows g and g + 8
#pragma once

#include "matmill/dtype/half.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill::ptx {

// Loads four 8x8 matrices. Lane 8 i + r gives the address of row r (16 bytes in shared memory) of matrix i, which
// arrives in x[i]. With TRANSPOSED, lanes receive columns instead of rows.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(unsigned (&x)[4], unsigned address) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  }
}

// The first two of them; lanes 16 to 31 give no address.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(unsigned (&x)[2], unsigned address) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address)
                 : "memory");
  }
}

// A lane's accumulators of a 16 x 8 tile: columns 2 t and 2 t + 1 of row g, then of row g + 8.
template <bool ACC16>
struct Accumulator;

template <>
struct Accumulator<false> {
  float x[4] = {};
  __device__ __forceinline__ float operator[](int i) const { return x[i]; }
};

template <>
struct Accumulator<true> {
  unsigned x[2] = {};  // pairs of float16
  __device__ __forceinline__ float operator[](int i) const {
    return i % 2 ? Half::upper(x[i / 2]) : Half::lower(x[i / 2]);
  }
};

__device__ __forceinline__ void mma_m16n8k8(Half, Accumulator<false>& c, unsigned a0, unsigned a1, unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

__device__ __forceinline__ void mma_m16n8k8(Half, Accumulator<true>& c, unsigned a0, unsigned a1, unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
      : "+r"(c.x[0]), "+r"(c.x[1])
      : "r"(a0), "r"(a1), "r"(b0));
}

__device__ __forceinline__ void mma_m16n8k16(Half, Accumulator<false>& c, const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16(Half, Accumulator<true>& c, const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(c.x[0]), "+r"(c.x[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16(BFloat, Accumulator<false>& c, const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a * b, m8n8k4: lane 4 g + t holds element (g, t) of A and element (t, g) of B.
__device__ __forceinline__ void mma_m8n8k4(double& c0, double& c1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c0), "+d"(c1)
      : "d"(a), "d"(b));
}

// c += a * b, m16n8k8 on float32 whose lower 13 bits are ignored. Lane 4 g + t holds columns t, t + 4 of rows g, g + 8
// of A (rows first) and rows t, t + 4 of column g of B.
__device__ __forceinline__ void mma_m16n8k8_tf32(Accumulator<false>& c, const unsigned (&a)[4], unsigned b0,
                                                 unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The nearest tf32, ties away from zero, as a float32 whose lower 13 bits are zeros.
__device__ __forceinline__ float rounded_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// c += a * b on float64, at full precision: m16n8k4, k8 or k16 by the size of the fragments, one instruction on sm_90,
// several m8n8k4 on sm_80. Lane 4 g + t holds columns t, t + 4, ... of rows g, g + 8 of A (rows first) and rows t,
// t + 4, ... of column g of B.
template <int B_SIZE>
__device__ __forceinline__ void mma_m16n8(double (&c)[4], const double (&a)[2 * B_SIZE], const double (&b)[B_SIZE]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (B_SIZE == 1) {
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
  } else if constexpr (B_SIZE == 2) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
  } else {
    static_assert(B_SIZE == 4, "m16n8 has k4, k8 and k16");
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
  }
#else
#pragma unroll
  for (int s = 0; s < B_SIZE; ++s) {
    mma_m8n8k4(c[0], c[1], a[2 * s], b[s]);
    mma_m8n8k4(c[2], c[3], a[2 * s + 1], b[s]);
  }
#endif
}

// c += a * b, 16 x 16 times 16 x 8: one m16n8k16 on sm_80, two m16n8k8 on sm_75. Both take the same registers.
template <class Scalar, bool ACC16>
__device__ __forceinline__ void mma_16x8x16(Accumulator<ACC16>& c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  mma_m16n8k16(Scalar(), c, a, b0, b1);
#else
  mma_m16n8k8(Scalar(), c, a[0], a[1], b0);
  mma_m16n8k8(Scalar(), c, a[2], a[3], b1);
#endif
}

}  // namespace matmill::ptx
