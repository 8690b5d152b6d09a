// Barriers of a part of a block.
// PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
#pragma once

namespace matmill::ptx {

// Waits until THREADS threads, in whole warps, have come to the barrier of this number: 1 to 15, 0 is __syncthreads()'s.
// What each of them has written to shared memory before, all of them can read.
template <int THREADS>
__device__ __forceinline__ void barrier_sync(int number) {
  static_assert(THREADS % 32 == 0, "whole warps");
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

}  // namespace matmill::ptx
