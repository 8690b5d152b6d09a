// D = A * B in float32 for matrices of 16 bits: one warp group per 64 x BN tile of D, and one stage.
//
//   k-step i           waits until                 how                       then
//   thread 0           step i - 1 has been read    wgmma_wait, barrier       expects a stage's bytes, loads A and B
//   all 128 threads    step i has come             full, parity i % 2        four products, commit, wait_group 0
//
// Operands are swizzled by 128 bytes. K-major ones, A [m][k] and B [n][k], have rows of 64 k; MN-major ones, A [k][m] and
// B [k][n], come in boxes of 64 rows of k with 64 m or n each.
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/mma.cuh"
#include "matmill/ptx/tma.cuh"
#include "matmill/ptx/wgmma.cuh"

using namespace matmill::ptx;

constexpr int BM = 64, BN = Config::BN, BK = 64;
constexpr int BOX = 64 * 128;  // bytes of 64 rows with 128 bytes each
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;

// Loads 64 k of ROWS rows or columns of an operand.
template <int ROWS, bool TRANSPOSED>
__device__ __forceinline__ void load(unsigned to, const matmill::TensorMap* map, unsigned full, int first, int k) {
  if constexpr (TRANSPOSED) {
#pragma unroll
    for (int i = 0; i < ROWS / 64; ++i) tma_load_2d(to + i * BOX, map, full, first + 64 * i, k);
  } else {
    tma_load_2d(to, map, full, k, first);
  }
}

template <bool TRANSPOSED>
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  return TRANSPOSED ? mn_major_descriptor<128>(address, BOX) : k_major_descriptor<128>(address);
}

// From one k16 of an operand to the next, in bytes.
template <bool TRANSPOSED>
constexpr int NEXT = TRANSPOSED ? 16 * 128 : 32;

// One block per tile: grid (tiles of n, tiles of m).
extern "C" __global__ void __launch_bounds__(128)
    wgmma_product(const __grid_constant__ matmill::TensorMap a, const __grid_constant__ matmill::TensorMap b, float* d,
                  int m, int n, int k, int pitch) {
  extern __shared__ __align__(1024) unsigned char shared[];  // A, B and the barrier
  constexpr bool TA = Config::A_TRANSPOSED, TB = Config::B_TRANSPOSED;
  const unsigned in_a = shared_address(shared), in_b = in_a + A_BYTES, full = in_b + B_BYTES;
  const int row = blockIdx.y * BM, column = blockIdx.x * BN, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
  }
  __syncthreads();

  float sums[BN / 2];
  for (int step = 0; step * BK < k; ++step) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(full, A_BYTES + B_BYTES);
      load<BM, TA>(in_a, &a, full, row, step * BK);
      load<BN, TB>(in_b, &b, full, column, step * BK);
    }
    mbarrier_wait(full, step % 2);
    if constexpr (Config::A_REGISTERS) {
      static_assert(!(Config::A_REGISTERS && TA), "a warp reads rows of k");
      unsigned fragments[BK / 16][4];
#pragma unroll
      for (int i = 0; i < BK / 16; ++i) {
        // Lane q has row q % 16 of the warp and 8 k from 8 (q / 16) on: 16 bytes, which the swizzle has moved.
        const int r = 16 * warp + lane % 16, chunk = 2 * i + lane / 16;
        ldmatrix<false>(fragments[i], in_a + r * 128 + (chunk ^ r % 8) * 16);
      }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < BK / 16; ++i) {
        wgmma<Scalar, false, TB>(sums, fragments[i], later(descriptor<TB>(in_b), i * NEXT<TB>), step + i > 0);
      }
    } else {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < BK / 16; ++i) {
        wgmma<Scalar, TA, TB>(sums, later(descriptor<TA>(in_a), i * NEXT<TA>),
                              later(descriptor<TB>(in_b), i * NEXT<TB>), step + i > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    if constexpr (Config::A_REGISTERS) fence_proxy_async_shared();  // after reads by ldmatrix, before the next load
    __syncthreads();
  }
  wgmma_pin(sums);

#pragma unroll
  for (int i = 0; i < BN / 2; ++i) {
    const int r = row + 16 * warp + lane / 4 + 8 * (i / 2 % 2), c = column + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (r < m && c < n) d[(long long)r * pitch + c] = sums[i];
  }
}
