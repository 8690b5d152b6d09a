// cp.async: copies from global to shared memory that bypass registers. PTX ISA, "Data Movement and Conversion
// Instructions: Non-bulk asynchronous copy". Needs sm_80. On sm_75 the same functions copy synchronously, which is slow
// but keeps the contract: the data is there after the wait.
#pragma once

namespace matmill::ptx {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Copies BYTES (4, 8 or 16) from src to the shared-memory address dst. Where keep is false, it writes zeros and does
// not read src (src-size 0).
template <int BYTES>
__device__ __forceinline__ void cp_async_zfill(unsigned dst, const void* src, bool keep) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  const int bytes = keep ? BYTES : 0;
  if constexpr (BYTES == 16) {
    // .cg caches in L2 only: a block reads a tile once, so L1 need not hold it.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES), "r"(bytes)
                 : "memory");
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

// As cp_async_zfill() where `active`, else nothing: predicated, as a branch would keep the compiler from moving arithmetic
// between copies.
template <int BYTES>
__device__ __forceinline__ void cp_async_zfill_if(bool active, unsigned dst, const void* src, bool keep) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  const int bytes = keep ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile(
        "{.reg .pred active; setp.ne.u32 active, %3, 0;"
        " @active cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(dst), "l"(src), "r"(bytes), "r"(unsigned(active))
        : "memory");
  } else {
    asm volatile(
        "{.reg .pred active; setp.ne.u32 active, %4, 0;"
        " @active cp.async.ca.shared.global [%0], [%1], %2, %3;}" ::"r"(dst), "l"(src), "n"(BYTES), "r"(bytes),
        "r"(unsigned(active))
        : "memory");
  }
#else
  if (active) cp_async_zfill<BYTES>(dst, src, keep);
#endif
}

// Copies BYTES (4, 8 or 16) through L1 (.ca): a sector whose halves go to different 128-byte rows of shared memory is
// then fetched once, not twice.
template <int BYTES>
__device__ __forceinline__ void cp_async(unsigned dst, const void* src) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES) : "memory");
#else
  cp_async_zfill<BYTES>(dst, src, true);
#endif
}

// Copies the first `bytes` of BYTES and writes zeros for the rest (src-size). Where bytes is 0, it does not read src.
template <int BYTES>
__device__ __forceinline__ void cp_async_src_size(unsigned dst, const void* src, int bytes) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES), "r"(bytes) : "memory");
#else
  unsigned char* const to = static_cast<unsigned char*>(__cvta_shared_to_generic(dst));
  const unsigned char* const from = static_cast<const unsigned char*>(src);
  for (int i = 0; i < BYTES; ++i) to[i] = i < bytes ? from[i] : 0;
#endif
}

// Closes this thread's group of copies issued since the last commit.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's newest groups are in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace matmill::ptx
