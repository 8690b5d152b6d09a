// Loads from addresses in shared memory. PTX ISA, "Data Movement and Conversion Instructions: ld".
#pragma once

namespace matmill::ptx {

__device__ __forceinline__ double ld_shared_f64(unsigned address) {
  double x;
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ unsigned short ld_shared_u16(unsigned address) {
  unsigned short x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ unsigned ld_shared_u32(unsigned address) {
  unsigned x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ uint4 ld_shared_v4(unsigned address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

}  // namespace matmill::ptx
