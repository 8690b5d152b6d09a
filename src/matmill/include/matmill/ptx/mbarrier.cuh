// mbarrier: a barrier in shared memory that counts arrivals, and the bytes of asynchronous copies. PTX ISA, "Parallel
// Synchronization and Communication Instructions: mbarrier". Needs sm_90.
//
// A barrier takes 8 bytes, aligned to 8, and is named by its shared-memory address. Its phase ends when as many threads
// have arrived as it was initialized for, and all bytes that it expects have come. Waits name a phase by its parity:
// phase 0 has parity 0. On a new barrier a wait for parity 1 ends at once, as that for a phase that is over.
#pragma once

#include "matmill/ptx/cp_async.cuh"

namespace matmill::ptx {

// Phases end after `count` arrivals, 1 to 2^20 - 1. One thread does this, before the fence below.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Ends the life of a barrier, so that its memory may serve for something else.
__device__ __forceinline__ void mbarrier_inval(unsigned barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Makes this thread's initializations visible to the cluster and to the async proxy. A barrier of the block, or of the
// cluster, has to follow.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Release: whoever waits for the phase sees what this thread did before.
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same on a barrier of another block of the cluster, whose address map_shared_rank() gives.
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same for a thread that has only read, and whose reads are complete. It publishes nothing: a release at cluster scope
// is a fence of the whole GPU, which would take longer than a k-step.
__device__ __forceinline__ void mbarrier_arrive_cluster_relaxed(unsigned barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The phase waits for `bytes` more of asynchronous copies.
__device__ __forceinline__ void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives once this thread's cp.async copies have landed; the barrier counts this arrival among those that it was
// initialized for (.noinc).
__device__ __forceinline__ void cp_async_mbarrier_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Whether the phase of that parity is over. May take some microseconds to answer no.
__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
  unsigned over;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 over, [%1], %2;\n"
      "selp.u32 %0, 1, 0, over;\n"
      "}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over;
}

// The same where threads of other blocks of the cluster arrive: what they did before is visible too.
__device__ __forceinline__ bool mbarrier_try_wait_cluster(unsigned barrier, unsigned parity) {
  unsigned over;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
      "selp.u32 %0, 1, 0, over;\n"
      "}"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over;
}

// Waits until the phase of that parity is over. Afterwards the copies that the barrier counted are visible, and what
// the arriving threads did before.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

__device__ __forceinline__ void mbarrier_wait_cluster(unsigned barrier, unsigned parity) {
  while (!mbarrier_try_wait_cluster(barrier, parity)) {
  }
}

}  // namespace matmill::ptx
