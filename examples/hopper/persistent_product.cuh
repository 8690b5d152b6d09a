// D = A * B for matrices of 16 bits and any m, n and k whose rows are multiples of 16 bytes: a persistent,
// warp-specialized kernel. One block per SM computes tiles of 128 x BN; one warp group loads, two multiply 64 rows each.
//
//   k-step j of a block, stage s = j % STAGES, round = j / STAGES
//     role                         waits until             how                              then
//     producer, one thread         s has been read         empty[s], parity (round + 1) % 2 expects bytes, loads A and B
//     consumers, 2 x 128 threads   s has come              full[s], parity round % 2        4 products, commit
//     consumers                    step j - 1 is computed  wgmma_wait<1>                    each warp arrives at its empty
//   tile of a block
//     consumer, thread 0 of each   last tile's store read  bulk_wait_read<0>                named barrier 1 + group
//     consumers                    staging is free         named barrier 1 + group          stmatrix, proxy fence, barrier
//     consumer, thread 0 of each   staging is written      named barrier 1 + group          TMA store of 64 rows, commit
//
// full[s] counts one arrival and the bytes of a stage, empty[s] the eight warps of the consumers.
#include "hopper/consumer.cuh"
#include "kernels/shared/raster.cuh"
#include "matmill/ptx/elect.cuh"
#include "matmill/ptx/setmaxnreg.cuh"

struct Tile {
  static constexpr int BM = ::BM, BN = ::BN;
};

// Boxes: of A 128 rows x 64 k, of B BN rows x 64 k, or with B_TRANSPOSED 64 k x 64 columns, of D 64 x 64.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    persistent_product(const __grid_constant__ matmill::TensorMap a, const __grid_constant__ matmill::TensorMap b,
                       const __grid_constant__ matmill::TensorMap d, int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(shared.full + 8 * s, 1);
      mbarrier_init(shared.empty + 8 * s, 4 * CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  const int tiles = (m + BM - 1) / BM * ((n + BN - 1) / BN), steps = (k + BK - 1) / BK;
  Slot slot;
  if (threadIdx.x < 128) {
    setmaxnreg_dec<40>();
    if (threadIdx.x < 32 && elect_one()) {
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(tile, m, n);
        for (int step = 0; step < steps; ++step) {
          const unsigned to = shared.stages + slot.stage * STAGE_BYTES, full = shared.full + 8 * slot.stage;
          mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);
          mbarrier_arrive_expect_tx(full, STAGE_BYTES);
          tma_load_2d(to, &a, full, step * BK, origin.row);
          if constexpr (Config::B_TRANSPOSED) {
#pragma unroll
            for (int i = 0; i < BN / 64; ++i) {
              tma_load_2d(to + A_BYTES + i * BOX, &b, full, origin.column + 64 * i, step * BK);
            }
          } else {
            tma_load_2d(to + A_BYTES, &b, full, step * BK, origin.column);
          }
          slot.next();
        }
      }
    }
  } else {
    setmaxnreg_inc<232>();
    const bool signals = threadIdx.x % 32 == 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(tile, m, n);
      float sums[BN / 2];
      multiply(sums, slot, shared, steps, [&](int stage) {
        if (signals) mbarrier_arrive(shared.empty + 8 * stage);
      });
      store(sums, shared, &d, origin.row, origin.column);
    }
    finish_stores();
  }
}
