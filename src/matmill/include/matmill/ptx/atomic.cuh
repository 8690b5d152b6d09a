// Atomic operations on global memory that order what lies before and after them.
// PTX ISA, "Parallel Synchronization and Communication Instructions: atom". Needs sm_70.
#pragma once

namespace matmill::ptx {

// Adds 1 to *counter, or sets it to 0 where it is `most` already; gives what it was. What this thread knows to be written
// is there for whoever counts later, and what others wrote before they counted is there for this thread.
__device__ __forceinline__ unsigned count_up(unsigned* counter, unsigned most) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(most) : "memory");
  return before;
}

}  // namespace matmill::ptx
