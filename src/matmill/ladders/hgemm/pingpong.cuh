// As `tma-store`, with a tile for each of the consumers: while one stores its tile, the other multiplies.
//
//   k-step j of a block, stage s = j % STAGES, parity p = j / STAGES % 2; steps count on through its tiles t = 0, 1, …
//     role                   waits until              how               then
//     producer, one thread   s has been read          empty[s], 1 - p   expects the bytes of s, starts its copies
//     consumer t % 2         s has come               full[s], p        8 products of 64 x 128 x 16, one group
//     consumer t % 2         step j - 1 is computed   wgmma_wait<1>     one lane of each warp arrives at empty[s - 1]
//   tile t of a block, for consumer g = t % 2
//     before its first step  t - 1's last has begun   barrier 3 + g     multiplies
//     in its last step       -                        -                 arrives at barrier 4 - g, for tile t + 1
//     after its last step    it is computed           wgmma_wait<0>     stores its tile as `tma-store` does
//
// full[s] counts one arrival and the bytes of a stage, empty[s] the four warps of the consumer that reads it. Named
// barriers 3 and 4 count 256 threads: the consumer that waits, and the one that lets it go on.
#include "kernels/shared/raster.cuh"
#include "ladders/hgemm/warpgroup_tile.cuh"
#include "matmill/ptx/elect.cuh"
#include "matmill/ptx/setmaxnreg.cuh"

using namespace matmill::ptx;
constexpr int STAGES = Config::STAGES, CONSUMERS = Config::THREADS / 128 - 1;
using Stage = matmill::TileStage<Config::BM, Config::BN>;
using Tile = matmill::WarpgroupTile<Scalar, Config::BM, Config::BN>;
constexpr int STAGING_BYTES = Stage::BM * Stage::BN * int(sizeof(Scalar));
static_assert(STAGES * (Stage::BYTES + 16) + CONSUMERS * STAGING_BYTES == Config::SHARED_BYTES && CONSUMERS == 2 &&
                  Stage::BK == Config::BK,
              "host and device must agree");
constexpr int ORDER = 1 + CONSUMERS;  // after the named barriers of the block and of each consumer's epilogue

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    pingpong(const __grid_constant__ matmill::TensorMap A, const __grid_constant__ matmill::TensorMap B,
             const Scalar* C, const __grid_constant__ matmill::TensorMap D, int m, int n, int k, float alpha,
             float beta) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned stages = shared_address(shared), staging = stages + STAGES * Stage::BYTES;
  const unsigned full = staging + CONSUMERS * STAGING_BYTES, empty = full + 8 * STAGES;
  const int tiles = (m + Stage::BM - 1) / Stage::BM * ((n + Stage::BN - 1) / Stage::BN);
  const int steps = (k + Stage::BK - 1) / Stage::BK, group = int(threadIdx.x) / 128 - 1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4);
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
    const int first = blockIdx.x + group * gridDim.x;
    slot.skip(group * steps);
    for (int index = first; index < tiles; index += CONSUMERS * gridDim.x) {
      const matmill::Origin origin = matmill::tile_origin<Stage, Config::GROUP_M>(index, m, n);
      if (index != blockIdx.x) barrier_sync<256>(ORDER + group);
      Tile tile;
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        const unsigned stage = stages + slot.stage * Stage::BYTES;
        mbarrier_wait(full + 8 * slot.stage, slot.parity);
        tile.multiply(stage, stage + Stage::A_BYTES, step == 0);
        wgmma_wait<1>();
        if (step > 0 && signals) mbarrier_arrive(empty + 8 * before);
        before = slot.stage;
        slot.next();
      }
      if (index + gridDim.x < tiles) barrier_arrive<256>(ORDER + 1 - group);
      tile.finish();
      if (signals) mbarrier_arrive(empty + 8 * before);
      slot.skip(steps);
      tile.store_boxes(staging + group * STAGING_BYTES, 1 + group, &D, C, origin.row, origin.column, m, n, alpha, beta);
    }
    Tile::finish_stores();
  }
}
