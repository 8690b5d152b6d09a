// Kernels of one stream that overlap: the second one is launched early, and waits itself for the first one's end.
// PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol". Needs sm_90; before that kernels of
// a stream follow each other, and there is nothing to say.
#pragma once

namespace matmill::ptx {

// The next launch of the stream may start as soon as all blocks have come here, if it is an early one.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the launch before this one has ended, and all that it has written can be read. Every thread of an early launch
// must come here before it touches memory, or ends: what comes after it on the stream relies on both having ended.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// How every early launch begins, that after it all follow each other as if none were early: the next one is let start once
// this one waits no more, so that one at most waits on the multiprocessors.
__device__ __forceinline__ void begin() {
  wait_for_previous();
  let_next_start();
}

}  // namespace matmill::ptx
