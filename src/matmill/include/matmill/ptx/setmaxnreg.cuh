// setmaxnreg: registers per thread, moved from one warp group of a block to another. PTX ISA, "Miscellaneous
// Instructions: setmaxnreg". Needs sm_90a, and a kernel whose launch bounds fix its registers. All warps of a warp group
// execute it.
#pragma once

namespace matmill::ptx {

// Gives back registers, so that this thread has REGISTERS.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "24 to 256 registers, in steps of 8");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Waits until so many registers have been given back that this thread can have REGISTERS.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "24 to 256 registers, in steps of 8");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

}  // namespace matmill::ptx
