// stmatrix: a warp stores fragments of 16-bit elements to shared memory. PTX ISA, "Warp-level matrix instructions:
// stmatrix". Needs sm_90.
#pragma once

#include "matmill/dtype/half.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill::ptx {

// Stores four 8x8 matrices, the reverse of ldmatrix(). Lane 8 i + r gives the address of row r (16 bytes) of matrix i,
// of which lane 4 g + t holds columns 2 t, 2 t + 1 of row g in x[i]. With TRANSPOSED, lanes hold rows of columns instead.
template <bool TRANSPOSED>
__device__ __forceinline__ void stmatrix(unsigned address, const unsigned (&x)[4]) {
  if constexpr (TRANSPOSED) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  }
}

// The first two of them; lanes 16 to 31 give no address.
template <bool TRANSPOSED>
__device__ __forceinline__ void stmatrix(unsigned address, const unsigned (&x)[2]) {
  if constexpr (TRANSPOSED) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(x[0]), "r"(x[1])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(x[0]), "r"(x[1])
                 : "memory");
  }
}

// Two elements of a row for stmatrix(), rounded from float32 by one instruction.
__device__ __forceinline__ unsigned rounded_pair(Half, float lower, float upper) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}

__device__ __forceinline__ unsigned rounded_pair(BFloat, float lower, float upper) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
}

}  // namespace matmill::ptx
