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

}  // namespace matmill::ptx
