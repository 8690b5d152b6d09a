// Copies from global to shared memory that do not pass through registers.
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk asynchronous copy". Needs sm_80; on sm_75 the same
// functions copy at once, which is a legal (if slow) way to keep the promise that the data is there after the wait.
#pragma once

namespace matmill::ptx {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Copies BYTES (4, 8 or 16) from src to the shared-memory address dst; where keep is false, writes zeros and does not touch src.
template <int BYTES>
__device__ __forceinline__ void cp_async_or_zero(unsigned dst, const void* src, bool keep) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  const int bytes = keep ? BYTES : 0;
  if constexpr (BYTES == 16) {
    // .cg: into L2 only. A tile is read once per block, so L1 would hold it for nothing.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES), "r"(bytes) : "memory");
  }
#else
  void* const to = __cvta_shared_to_generic(dst);
  if constexpr (BYTES == 16) {
    *static_cast<uint4*>(to) = keep ? *static_cast<const uint4*>(src) : uint4{0, 0, 0, 0};
  } else if constexpr (BYTES == 8) {
    *static_cast<uint2*>(to) = keep ? *static_cast<const uint2*>(src) : uint2{0, 0};
  } else {
    *static_cast<unsigned*>(to) = keep ? *static_cast<const unsigned*>(src) : 0u;
  }
#endif
}

// Copies BYTES (4, 8 or 16). Through L1: a sector whose halves go to different 128-byte rows of shared memory is then
// fetched once, not twice.
template <int BYTES>
__device__ __forceinline__ void cp_async(unsigned dst, const void* src) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES) : "memory");
#else
  cp_async_or_zero<BYTES>(dst, src, true);
#endif
}

// Copies the first `bytes` of BYTES and writes zeros for the rest; where bytes is 0, src is not touched.
template <int BYTES>
__device__ __forceinline__ void cp_async_part(unsigned dst, const void* src, int bytes) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES), "r"(bytes) : "memory");
#else
  unsigned char* const to = static_cast<unsigned char*>(__cvta_shared_to_generic(dst));
  const unsigned char* const from = static_cast<const unsigned char*>(src);
  for (int i = 0; i < BYTES; ++i) to[i] = i < bytes ? from[i] : 0;
#endif
}

// Closes the group of this thread's copies issued since the last commit.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's newest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace matmill::ptx
