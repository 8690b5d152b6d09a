// As `wgmma`, with STAGES tiles in shared memory: while one is multiplied, TMA fills the others.
//
//   k-step j, stage s = j % STAGES, parity p = j / STAGES % 2
//     role          waits until              how              then
//     128 threads   s has come               full[s], p       8 products of 64 x 128 x 16, one group
//     128 threads   step j - 1 is computed   wgmma_wait<1>    one lane of each warp arrives at empty[s - 1]
//     thread 0      all warps have read it   empty[s - 1]     starts the copies of step j - 1 + STAGES into it
//
// full[s] counts one arrival and the bytes of a stage, empty[s] the four warps. There is one role: the thread that
// copies multiplies too, and copies when it comes past.
#include "kernels/shared/raster.cuh"
#include "ladders/hgemm/warpgroup_tile.cuh"

using namespace matmill::ptx;
constexpr int STAGES = Config::STAGES;
using Stage = matmill::TileStage<Config::BM, Config::BN>;
using Tile = matmill::WarpgroupTile<Scalar, Config::BM, Config::BN>;
static_assert(Stage::BK == Config::BK && STAGES * (Stage::BYTES + 16) == Config::SHARED_BYTES,
              "host and device must agree");

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    tma_pipeline(const __grid_constant__ matmill::TensorMap A, const __grid_constant__ matmill::TensorMap B,
                 const Scalar* C, Scalar* D, int m, int n, int k, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned stages = shared_address(shared), full = stages + STAGES * Stage::BYTES, empty = full + 8 * STAGES;
  const matmill::Origin origin = matmill::tile_origin<Stage, Config::GROUP_M>(blockIdx.x, m, n);
  const int steps = (k + Stage::BK - 1) / Stage::BK;
  const auto load = [&](int step, int stage) {
    Stage::load(stages + stage * Stage::BYTES, full + 8 * stage, &A, &B, origin.row, origin.column, step * Stage::BK);
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int s = 0; s < min(STAGES, steps); ++s) load(s, s);
  }

  Tile tile;
  matmill::PipelineSlot<STAGES> slot, before;
  for (int step = 0; step < steps; ++step) {
    const unsigned stage = stages + slot.stage * Stage::BYTES;
    mbarrier_wait(full + 8 * slot.stage, slot.parity);
    tile.multiply(stage, stage + Stage::A_BYTES, step == 0);
    wgmma_wait<1>();
    slot.next();
    if (step > 0) {
      if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + 8 * before.stage);
      if (threadIdx.x == 0 && step - 1 + STAGES < steps) {
        mbarrier_wait(empty + 8 * before.stage, before.parity);
        load(step - 1 + STAGES, before.stage);
      }
      __syncwarp();  // wgmma needs whole warps
      before.next();
    }
  }
  tile.finish();
  tile.store_pairs(C, D, origin.row, origin.column, m, n, alpha, beta);
}
