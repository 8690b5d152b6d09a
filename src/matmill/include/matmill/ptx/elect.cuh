// elect.sync: one lane of a warp. PTX ISA, "Parallel Synchronization and Communication Instructions: elect.sync". Needs
// sm_90.
#pragma once

namespace matmill::ptx {

// True in one lane of the warp, the same one each time. All lanes call this.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected;
}

}  // namespace matmill::ptx
