// As `warp-specialised`, with one block per SM that walks over tiles: while consumers store one, the producer already
// loads the next.
//
//   k-step j of a block, stage s = j % STAGES, parity p = j / STAGES % 2; steps count on through all of its tiles
//     role                   waits until              how               then
//     producer, one thread   s has been read          empty[s], 1 - p   expects the bytes of s, starts its copies
//     consumers, 2 x 128     s has come               full[s], p        4 products of 64 x 256 x 16, one group
//     consumers              step j - 1 is computed   wgmma_wait<1>     one lane of each warp arrives at empty[s - 1]
//   end of a tile
//     consumers              its last step            wgmma_wait<0>     arrive at its empty, store 64 rows each
//
// Block b has tiles b, b + blocks, … of the raster order, so what is computed at one time is a group of neighbours.
#include "kernels/shared/raster.cuh"
#include "ladders/hgemm/warpgroup_tile.cuh"
#include "matmill/ptx/elect.cuh"
#include "matmill/ptx/setmaxnreg.cuh"

using namespace matmill::ptx;
constexpr int STAGES = Config::STAGES, CONSUMERS = Config::THREADS / 128 - 1;
using Stage = matmill::TileStage<Config::BM, Config::BN>;
using Tile = matmill::WarpgroupTile<Scalar, Config::BM / CONSUMERS, Config::BN>;
static_assert(Stage::BK == Config::BK && STAGES * (Stage::BYTES + 16) == Config::SHARED_BYTES,
              "host and device must agree");

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    persistent(const __grid_constant__ matmill::TensorMap A, const __grid_constant__ matmill::TensorMap B,
               const Scalar* C, Scalar* D, int m, int n, int k, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned stages = shared_address(shared), full = stages + STAGES * Stage::BYTES, empty = full + 8 * STAGES;
  const int tiles = (m + Stage::BM - 1) / Stage::BM * ((n + Stage::BN - 1) / Stage::BN);
  const int steps = (k + Stage::BK - 1) / Stage::BK, group = int(threadIdx.x) / 128 - 1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4 * CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  matmill::PipelineSlot<STAGES> slot;
  if (group < 0) {
    setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
    if (threadIdx.x < 32 && elect_one()) {
      for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const matmill::Origin origin = matmill::tile_origin<Stage, Config::GROUP_M>(index, m, n);
        for (int step = 0; step < steps; ++step) {
          mbarrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);
          Stage::load(stages + slot.stage * Stage::BYTES, full + 8 * slot.stage, &A, &B, origin.row, origin.column,
                      step * Stage::BK);
          slot.next();
        }
      }
    }
  } else {
    setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
    const bool signals = threadIdx.x % 32 == 0;
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
      const matmill::Origin origin = matmill::tile_origin<Stage, Config::GROUP_M>(index, m, n);
      Tile tile;
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        const unsigned stage = stages + slot.stage * Stage::BYTES;
        mbarrier_wait(full + 8 * slot.stage, slot.parity);
        tile.multiply(stage + group * matmill::BOX_BYTES, stage + Stage::A_BYTES, step == 0);
        wgmma_wait<1>();
        if (step > 0 && signals) mbarrier_arrive(empty + 8 * before);
        before = slot.stage;
        slot.next();
      }
      tile.finish();
      if (signals) mbarrier_arrive(empty + 8 * before);
      tile.store_pairs(C, D, origin.row + 64 * group, origin.column, m, n, alpha, beta);
    }
  }
}
