// The tensor memory accelerator (TMA): copies of boxes of a tensor, and of contiguous bytes, between global and shared
// memory. PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy". Needs sm_90.
//
// Each function is for one thread. Coordinates count elements, the contiguous dimension first. Shared memory is named by
// its address, a multiple of 128; so that the swizzle starts at its first row, of 8 times the swizzle's bytes.
//
// Copies read and write shared memory in the async proxy. What threads wrote there by ordinary stores or stmatrix is
// visible to a copy after fence_proxy_async_shared() by the writers, and then a barrier.
#pragma once

#include "matmill/ptx/cp_async.cuh"
#include "matmill/ptx/tensor_map.cuh"

namespace matmill::ptx {

// Values of createpolicy for the cache hints of tma_load_*(), as CUTLASS passes them.
constexpr unsigned long long EVICT_NORMAL = 0x1000000000000000, EVICT_FIRST = 0x12f0000000000000,
                             EVICT_LAST = 0x14f0000000000000;

// Orders this thread's accesses to shared memory before later ones of the async proxy.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same for global memory.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Asks for the 128 bytes of the map, which the first copy would wait for.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (x, y) to shared memory. Elements outside the tensor become zeros. The barrier gets the bytes
// of the whole box.
__device__ __forceinline__ void tma_load_2d(unsigned to, const TensorMap* map, unsigned barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(unsigned to, const TensorMap* map, unsigned barrier, int x, int y,
                                            unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(unsigned to, const TensorMap* map, unsigned barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Copies the box to the same offset in each block of the cluster whose rank's bit is set in `blocks`. The barrier at the
// same offset in each of them gets the bytes.
__device__ __forceinline__ void tma_load_multicast_2d(unsigned to, const TensorMap* map, unsigned barrier, int x, int y,
                                                      unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast_3d(unsigned to, const TensorMap* map, unsigned barrier, int x, int y,
                                                      int z, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
}

// Brings the box to L2.
__device__ __forceinline__ void tma_prefetch_2d(const TensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

// Copies shared memory to the box at (x, y), neither of them negative. What is outside the tensor is not written, but for
// the rest of the 16 bytes in which a row of the tensor ends (seen on an H200). Part
// of the thread's group that bulk_commit() closes.
__device__ __forceinline__ void tma_store_2d(const TensorMap* map, unsigned from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y)
               : "memory");
}

__device__ __forceinline__ void tma_store_3d(const TensorMap* map, unsigned from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ __forceinline__ void tma_store_4d(const TensorMap* map, unsigned from, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// The same, added to what is there, element by element in no fixed order.
__device__ __forceinline__ void tma_reduce_add_2d(const TensorMap* map, unsigned from, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(from), "r"(x), "r"(y)
               : "memory");
}

__device__ __forceinline__ void tma_reduce_add_3d(const TensorMap* map, unsigned from, int x, int y, int z) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(from), "r"(x), "r"(y), "r"(z)
               : "memory");
}

// Copies `bytes` contiguous bytes to shared memory. Both addresses and the count are multiples of 16.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

// The way back, part of the thread's group that bulk_commit() closes.
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}

// Closes this thread's group of stores and reductions since the last commit.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's newest groups are in flight.
template <int PENDING>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits until at most PENDING of this thread's newest groups have yet to read shared memory, which may then be written.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

}  // namespace matmill::ptx
