// Stores to addresses in shared memory. PTX ISA, "Data Movement and Conversion Instructions: st".
#pragma once

namespace matmill::ptx {

__device__ __forceinline__ void st_shared_v4(unsigned address, const float4& x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

__device__ __forceinline__ void st_shared_v2(unsigned address, const float2& x) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x.x), "f"(x.y) : "memory");
}

__device__ __forceinline__ void st_shared_u32(unsigned address, unsigned x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

// Stores the lower 16 bits.
__device__ __forceinline__ void st_shared_u16(unsigned address, unsigned x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(x)) : "memory");
}

}  // namespace matmill::ptx
