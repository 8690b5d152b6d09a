// D = A * B for matrices of 16 bits, A [m][k] and B [n][k]: clusters of two blocks share one operand. Each block loads
// its own 128 x BN tile's other operand, and half of the shared one for both of them.
//
//   k-step j, stage s = j % STAGES, round = j / STAGES
//     role                   waits until              how                               then
//     producer, one thread   both blocks have read s  empty[s], parity (round + 1) % 2  expects bytes, loads its operand
//                                                                                       and half the other, for both
//     consumers              s has come               full[s], parity round % 2         4 products, commit
//     consumers              step j - 1 is computed   wgmma_wait<1>                     each warp arrives at empty[s'] of
//                                                                                       both blocks
//     all threads, at last   the other block is done  cluster barrier                   exit
//
// full[s] counts one arrival and the bytes of a stage, from whichever block they come; empty[s] the eight warps of the
// consumers of either block.
#include "hopper/consumer.cuh"
#include "matmill/ptx/cluster.cuh"
#include "matmill/ptx/elect.cuh"

constexpr int BLOCKS = 2;
constexpr unsigned short BOTH = 3;

// Grid: tiles of m by tiles of n, one of which is a multiple of two: clusters are 2 x 1 where they share B, and 1 x 2 where
// they share A. Boxes: 64 k and 128 rows of A, BN rows of B, half as many of the shared one; of D 64 x 64.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    multicast_product(const __grid_constant__ matmill::TensorMap a, const __grid_constant__ matmill::TensorMap b,
                      const __grid_constant__ matmill::TensorMap d, int k) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  const unsigned rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(shared.full + 8 * s, 1);
      mbarrier_init(shared.empty + 8 * s, 4 * CONSUMERS * BLOCKS);
    }
    fence_mbarrier_init();
  }
  cluster_sync();  // a block must not multicast to one whose barriers do not exist yet

  const int row = blockIdx.x * BM, column = blockIdx.y * BN, steps = (k + BK - 1) / BK;
  Slot slot;
  if (threadIdx.x < 128) {
    if (threadIdx.x < 32 && elect_one()) {
      for (int step = 0; step < steps; ++step) {
        const unsigned to_a = shared.stages + slot.stage * STAGE_BYTES, to_b = to_a + A_BYTES;
        const unsigned full = shared.full + 8 * slot.stage;
        mbarrier_wait_cluster(shared.empty + 8 * slot.stage, slot.parity ^ 1);
        mbarrier_arrive_expect_tx(full, STAGE_BYTES);
        if constexpr (Config::SHARES_B) {
          const int half = rank * (BN / BLOCKS);
          tma_load_2d(to_a, &a, full, step * BK, row);
          tma_load_multicast_2d(to_b + half * 128, &b, full, step * BK, column + half, BOTH);
        } else {
          const int half = rank * (BM / BLOCKS);
          tma_load_multicast_2d(to_a + half * 128, &a, full, step * BK, row + half, BOTH);
          tma_load_2d(to_b, &b, full, step * BK, column);
        }
        slot.next();
      }
    }
    __syncwarp();
  } else {
    const unsigned lane = threadIdx.x % 32;
    float sums[BN / 2];
    multiply(sums, slot, shared, steps, [&](int stage) {
      if (lane < BLOCKS) mbarrier_arrive_cluster(map_shared_rank(shared.empty + 8 * stage, lane));
    });
    store(sums, shared, &d, row, column);
    finish_stores();
    __syncwarp();
  }
  cluster_sync();  // the other block may still arrive at this one's barriers
}
