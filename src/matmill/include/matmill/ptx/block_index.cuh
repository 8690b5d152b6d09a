// The block's index in the grid. PTX ISA, "Special Registers: %ctaid".
#pragma once

namespace matmill::ptx {

// Reads blockIdx again: what follows from it is computed again too, and not kept in registers until then.
__device__ __forceinline__ uint3 block_index() {
  uint3 block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block.x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(block.y));
  asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(block.z));
  return block;
}

}  // namespace matmill::ptx
