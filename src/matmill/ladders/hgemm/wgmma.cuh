// As `float32-sums`, with wgmma in place of ldmatrix and mma.sync, and TMA in place of cp.async.
//
//   k-step j      waits until               how                   then
//   thread 0      step j - 1 has been read  wgmma_wait, barrier   expects the bytes of a stage, starts its copies
//   128 threads   step j has come           full, parity j % 2    8 products of 64 x 128 x 16, waits for them
//
// One warp group has the 128 x 128 tile of a block, as two times 64 rows. wgmma reads both operands from shared memory:
// no fragment passes through registers, and one thread copies. Nothing overlaps within a block: while tiles come, the
// tensor cores work for other blocks of the SM.
#include "kernels/shared/raster.cuh"
#include "ladders/hgemm/warpgroup_tile.cuh"

using namespace matmill::ptx;
using Stage = matmill::TileStage<Config::BM, Config::BN>;
using Tile = matmill::WarpgroupTile<Scalar, Config::BM, Config::BN>;
static_assert(Config::STAGES == 1 && Stage::BK == Config::BK && Stage::BYTES + 8 == Config::SHARED_BYTES,
              "host and device must agree");

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    wgmma_tile(const __grid_constant__ matmill::TensorMap A, const __grid_constant__ matmill::TensorMap B,
               const Scalar* C, Scalar* D, int m, int n, int k, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned stage = shared_address(shared), full = stage + Stage::BYTES;
  const matmill::Origin origin = matmill::tile_origin<Stage, Config::GROUP_M>(blockIdx.x, m, n);
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
  }
  __syncthreads();

  Tile tile;
  for (int step = 0; step * Stage::BK < k; ++step) {
    if (threadIdx.x == 0) Stage::load(stage, full, &A, &B, origin.row, origin.column, step * Stage::BK);
    mbarrier_wait(full, step % 2);
    tile.multiply(stage, stage + Stage::A_BYTES, step == 0);
    tile.finish();
    __syncthreads();
  }
  tile.store_pairs(C, D, origin.row, origin.column, m, n, alpha, beta);
}
