// Thread block clusters: blocks that run at the same time and reach each other's shared memory. PTX ISA, "Parallel
// Synchronization and Communication Instructions: barrier.cluster", "Data Movement and Conversion Instructions: mapa",
// "Special Registers: %cluster_ctarank". Needs sm_90.
#pragma once

#include "matmill/ptx/cp_async.cuh"

namespace matmill::ptx {

// The block's number within its cluster: x + y nx + z nx ny of %cluster_ctaid.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Blocks per cluster.
__device__ __forceinline__ unsigned cluster_size() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}

// The address, for instructions on .shared::cluster, of what block `rank` has at the same offset in its shared memory.
__device__ __forceinline__ unsigned map_shared_rank(unsigned address, unsigned rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Release: who waits sees what this thread did before. All lanes of a warp arrive together.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// The same without an order of memory accesses, for a thread that has written nothing.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// Waits until all threads of the cluster have arrived. All lanes of a warp wait together.
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// A word of any block of the cluster, at an address that map_shared_rank() gave.
__device__ __forceinline__ unsigned load_shared_cluster(unsigned address) {
  unsigned word;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

// 16 bytes of it.
__device__ __forceinline__ float4 load_shared_cluster_v4(unsigned address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

__device__ __forceinline__ void store_shared_cluster(unsigned address, unsigned word) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

}  // namespace matmill::ptx
