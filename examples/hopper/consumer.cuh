// What a consumer warp group of a warp-specialized product does: it multiplies the staged tiles, and stores its 64 rows
// of the tile of D. Stages hold A [BM][64 k], then B, swizzled by 128 bytes: [BN][64 k], or with B_TRANSPOSED boxes of
// [64 k][64 n].
#pragma once

#include "matmill/ptx/barrier.cuh"
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/stmatrix.cuh"
#include "matmill/ptx/tma.cuh"
#include "matmill/ptx/wgmma.cuh"

using namespace matmill::ptx;

constexpr int BM = 128, BN = Config::BN, BK = 64, STAGES = Config::STAGES;
constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS);
constexpr int BOX = 64 * 128;  // bytes of 64 rows with 128 bytes each
constexpr int A_BYTES = BM * BK * 2, STAGE_BYTES = A_BYTES + BN * BK * 2, D_BYTES = BM * BN * 2;

// Shared memory: the stages, D's tile before it is stored, then a full and an empty barrier per stage.
struct Shared {
  unsigned stages, d, full, empty;

  explicit __device__ __forceinline__ Shared(const void* start)
      : stages(shared_address(start)),
        d(stages + STAGES * STAGE_BYTES),
        full(d + D_BYTES),
        empty(full + 8 * STAGES) {}
};

// The stage of a k-step, and the parity of its full barrier's phase. Steps are counted through all tiles of a block.
struct Slot {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Multiplies `steps` stages from `slot` on. release(stage) tells the producers that this warp has read a stage; it comes
// one step late, so that one group of products is in flight.
template <class Release>
__device__ __forceinline__ void multiply(float (&sums)[BN / 2], Slot& slot, const Shared& shared, int steps,
                                         Release release) {
  constexpr bool TB = Config::B_TRANSPOSED;
  constexpr int NEXT_B = TB ? 16 * 128 : 32;
  const unsigned rows = (threadIdx.x / 128 - 1) * BOX;
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    const unsigned stage = shared.stages + slot.stage * STAGE_BYTES;
    const unsigned long long a = k_major_descriptor<128>(stage + rows);
    const unsigned long long b =
        TB ? mn_major_descriptor<128>(stage + A_BYTES, BOX) : k_major_descriptor<128>(stage + A_BYTES);
    mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < BK / 16; ++i) {
      wgmma<Scalar, false, TB>(sums, later(a, 32 * i), later(b, NEXT_B * i), step + i > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) release(before);
    before = slot.stage;
    slot.next();
  }
  wgmma_wait<0>();
  wgmma_pin(sums);
  release(before);
}

// Stores the warp group's 64 rows of a tile of D, which starts at (row, column): rounded, to shared memory, then by TMA.
// TMA omits what is outside D. The stores of the next tile wait until these have read shared memory.
__device__ __forceinline__ void store(const float (&sums)[BN / 2], const Shared& shared, const matmill::TensorMap* d,
                                      int row, int column) {
  const int group = threadIdx.x / 128 - 1, barrier = 1 + group, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const unsigned staging = shared.d + group * (D_BYTES / CONSUMERS);
  const bool first = threadIdx.x % 128 == 0;
  if (first) bulk_wait_read<0>();
  barrier_sync<128>(barrier);
  const int r = 16 * warp + lane % 16;
#pragma unroll
  for (int i = 0; i < BN / 16; ++i) {
    unsigned pairs[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) pairs[p] = rounded_pair(Scalar(), sums[8 * i + 2 * p], sums[8 * i + 2 * p + 1]);
    // Lane q has the address of row q % 16 and 8 columns from 8 (q / 16) on: 16 bytes, which D's swizzle moves.
    const int chunk = 2 * (i % 4) + lane / 16;
    stmatrix<false>(staging + i / 4 * BOX + r * 128 + (chunk ^ r % 8) * 16, pairs);
  }
  fence_proxy_async_shared();
  barrier_sync<128>(barrier);
  if (first) {
#pragma unroll
    for (int i = 0; i < BN / 64; ++i) tma_store_2d(d, staging + i * BOX, column + 64 * i, row + 64 * group);
    bulk_commit();
  }
}

// Shared memory outlives the stores' reads.
__device__ __forceinline__ void finish_stores() {
  if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
}
