// Loads from addresses in shared memory. PTX ISA, "Data Movement and Conversion Instructions: ld".
#pragma once

namespace matmill::ptx {

__device__ __forceinline__ double ld_shared_f64(unsigned address) {
  double x;
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
  return x;
}

}  // namespace matmill::ptx
