// Questions about Hopper that its documentation leaves open, one entry point each. Every wait has a limit.
#include "matmill/ptx/cluster.cuh"
#include "matmill/ptx/elect.cuh"
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/mma.cuh"
#include "matmill/ptx/tma.cuh"
#include "matmill/ptx/wgmma.cuh"

using namespace matmill::ptx;

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ bool test_wait(unsigned barrier, unsigned parity) {
  unsigned over;
  asm volatile("{.reg .pred over; mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2; selp.u32 %0, 1, 0, over;}"
               : "=r"(over)
               : "r"(barrier), "r"(parity)
               : "memory");
  return over;
}

// Whether the phase ends within 20 ms.
__device__ __forceinline__ bool ends(unsigned barrier, unsigned parity) {
  const unsigned long long start = nanoseconds();
  while (!test_wait(barrier, parity)) {
    if (nanoseconds() - start > 20000000) return false;
  }
  return true;
}

__device__ __forceinline__ unsigned new_barrier(unsigned address) {
  if (threadIdx.x == 0) {
    mbarrier_init(address, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  return address;
}

// d [64][N] += a [64][32 * count bytes] * b [N][32 * count bytes], all K-major, through maps of bytes with boxes of 64
// rows (b: N) x 128 bytes. A's tile is `shift` bytes behind a multiple of 1024, and its descriptor has `base` as base
// offset. One warp group. `done` becomes 1.
extern "C" __global__ void __launch_bounds__(128)
    wgmma_bits(const __grid_constant__ matmill::TensorMap a, const __grid_constant__ matmill::TensorMap b, float* d,
               unsigned* done, int count, int shift, int base) {
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int N = Config::N;
  const unsigned in_b = shared_address(shared), in_a = in_b + N * 128 + shift;
  const unsigned full = new_barrier(in_b + N * 128 + 1024 + 64 * 128);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sums[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int r = 16 * warp + lane / 4 + 8 * (i / 2 % 2), c = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    sums[i] = d[r * N + c];
  }
  bool came = true;
  for (int first = 0; first < count; first += 4) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(full, (64 + N) * 128);
      tma_load_2d(in_a, &a, full, 32 * first, 0);
      tma_load_2d(in_b, &b, full, 32 * first, 0);
    }
    came = ends(full, first / 4 % 2) && came;
    const int steps = min(4, count - first);
    for (int i = 0; i < steps; ++i) {
      const unsigned long long of_b = later(k_major_descriptor<128>(in_b), 32 * i);
      if constexpr (Config::A_REGISTERS) {
        unsigned fragments[4];
        const int r = 16 * warp + lane % 16, chunk = 2 * i + lane / 16;
        ldmatrix<false>(fragments, in_a + r * 128 + (chunk ^ r % 8) * 16);
        wgmma_fence();
        wgmma<Operand>(sums, fragments, of_b, true);
      } else {
        wgmma_fence();
        wgmma<Operand>(sums, later(k_major_descriptor<128>(in_a), 32 * i) | (unsigned long long)base << 49, of_b, true);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(sums);
    }
    fence_proxy_async_shared();
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int r = 16 * warp + lane / 4 + 8 * (i / 2 % 2), c = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    d[r * N + c] = sums[i];
  }
  if (threadIdx.x == 0) *done = came;
}

// What a box leaves in `bytes` of shared memory that were all 0xa5, and in `done` whether the barrier's phase ended when
// it expected `expected` bytes. One warp.
extern "C" __global__ void __launch_bounds__(32)
    box_bytes(const __grid_constant__ matmill::TensorMap map, unsigned char* dump, unsigned* done, int bytes,
              int expected, int x, int y) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned full = new_barrier(shared_address(shared) + bytes);
  for (int i = threadIdx.x; i < bytes; i += 32) shared[i] = 0xa5;
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(full, expected);
    tma_load_2d(shared_address(shared), &map, full, x, y);
    *done = ends(full, 0);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < bytes; i += 32) dump[i] = shared[i];
}

// The lane that elect.sync names for each of COUNT masks, and the lanes whose predicate is set. One warp.
extern "C" __global__ void __launch_bounds__(32) elected_lanes(const unsigned* masks, unsigned* found, int count) {
  for (int i = 0; i < count; ++i) {
    const unsigned mask = masks[i];
    unsigned lane = 99, elected = 0;
    if (mask >> threadIdx.x & 1) {
      asm volatile("{.reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p;}" : "=r"(lane), "=r"(elected) : "r"(mask));
      if (elected) {
        found[2 * i] = lane;
        atomicOr(found + 2 * i + 1, 1u << threadIdx.x);
      }
    }
    __syncwarp();
  }
}

// Bit 2 n + p of `answers`: whether test_wait for parity p is true after n arrivals at a barrier for one. One thread.
extern "C" __global__ void __launch_bounds__(32) parity_answers(unsigned* answers) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned barrier = new_barrier(shared_address(shared));
  if (threadIdx.x == 0) {
    unsigned bits = 0;
    for (int n = 0; n < 6; ++n) {
      for (unsigned p = 0; p < 2; ++p) bits |= unsigned(test_wait(barrier, p)) << (2 * n + p);
      mbarrier_arrive(barrier);
    }
    *answers = bits;
  }
}
