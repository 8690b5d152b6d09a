// Atomic operations on global memory that also order the memory accesses around them. PTX ISA, "Parallel
// Synchronization and Communication Instructions: atom". Needs sm_70.
#pragma once

namespace matmill::ptx {

// Adds 1 to *counter, or wraps it to 0 where it is `most` already. Returns the value before. Release: whoever
// increments later sees this thread's earlier writes, and those that a barrier has made visible to it. Acquire: this
// thread sees the writes of whoever incremented before.
__device__ __forceinline__ unsigned atom_inc_acq_rel(unsigned* counter, unsigned most) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(most) : "memory");
  return before;
}

}  // namespace matmill::ptx
