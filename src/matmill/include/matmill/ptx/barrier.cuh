// Named barriers: some warps of a block synchronize.
// PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
#pragma once

namespace matmill::ptx {

// Waits until THREADS threads, whole warps, have arrived at barrier `number`: 1 to 15, as 0 is __syncthreads()'s. All
// of them then see what each wrote to shared memory before.
template <int THREADS>
__device__ __forceinline__ void barrier_sync(int number) {
  static_assert(THREADS % 32 == 0, "bar.sync counts whole warps");
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// Counts this thread among the THREADS of the barrier and does not wait. Those that wait see what it wrote to shared
// memory before.
template <int THREADS>
__device__ __forceinline__ void barrier_arrive(int number) {
  static_assert(THREADS % 32 == 0, "bar.arrive counts whole warps");
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

}  // namespace matmill::ptx
