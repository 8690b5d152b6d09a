// Programmatic dependent launch: a kernel starts before its predecessor on the stream ends, and waits for that end
// itself. PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol". Needs sm_90. On older
// GPUs kernels of a stream never overlap, and these functions do nothing.
#pragma once

namespace matmill::ptx {

// Lets the next launch of the stream start once all blocks have called this, if it is a dependent launch.
__device__ __forceinline__ void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous launch has ended and its writes are visible. Every thread of a dependent launch must call
// this before it touches memory, or exit: the next launch of the stream relies on the end of both.
__device__ __forceinline__ void wait_on_dependency() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The first statement of every dependent launch. It triggers its dependents only after its own wait, so at most one
// grid waits on the SMs, and launches have the order of the stream.
__device__ __forceinline__ void wait_then_trigger() {
  wait_on_dependency();
  trigger_dependents();
}

}  // namespace matmill::ptx
