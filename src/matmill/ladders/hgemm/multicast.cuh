// As `tma-store`, in clusters of two blocks that compute neighbouring tiles at the same time and share an operand: each
// block loads half of it for both.
//
//   k-step j of a cluster, stage s = j % STAGES, parity p = j / STAGES % 2; steps count on through all of its tiles
//     role                   waits until              how               then
//     producer, one thread   both blocks have read s  empty[s], 1 - p   expects the bytes of s, loads its own operand,
//                                                                       and half of the shared one for both
//     consumers, 2 x 128     s has come               full[s], p        4 products of 64 x 256 x 16, one group
//     consumers              step j - 1 is computed   wgmma_wait<1>     two lanes of each warp arrive at empty[s - 1],
//                                                                       one in each block
//   end of a tile: as `tma-store`
//   end of the kernel
//     all threads            the other block is done  cluster barrier   exit
//
// full[s] counts one arrival and the bytes of a stage, from whichever block they come; empty[s] the eight warps of the
// consumers of either block. With SHARES_B clusters are 2 x 1: two tiles, one below the other, have one B. Otherwise
// they are 1 x 2: two tiles side by side have one A. The raster order is one of such pairs.
#include "kernels/shared/raster.cuh"
#include "ladders/hgemm/warpgroup_tile.cuh"
#include "matmill/ptx/cluster.cuh"
#include "matmill/ptx/elect.cuh"
#include "matmill/ptx/setmaxnreg.cuh"

using namespace matmill::ptx;
constexpr int STAGES = Config::STAGES, CONSUMERS = Config::THREADS / 128 - 1, BLOCKS = 2;
constexpr bool SHARES_B = Config::SHARES_B != 0;
constexpr unsigned short BOTH = 3;
using Stage = matmill::TileStage<Config::BM, Config::BN>;
using Tile = matmill::WarpgroupTile<Scalar, Config::BM / CONSUMERS, Config::BN>;
constexpr int STAGING_BYTES = Stage::BM * Stage::BN * int(sizeof(Scalar));
static_assert(Stage::BK == Config::BK && STAGES * (Stage::BYTES + 16) + STAGING_BYTES == Config::SHARED_BYTES,
              "host and device must agree");

struct Pair {
  static constexpr int BM = Stage::BM * (SHARES_B ? BLOCKS : 1), BN = Stage::BN * (SHARES_B ? 1 : BLOCKS);
};

// Loads this block's tile of one operand, and into both blocks its half of the tile that they share.
__device__ __forceinline__ void load(unsigned stage, unsigned full, const matmill::TensorMap* a,
                                     const matmill::TensorMap* b, matmill::Origin origin, int k, int rank) {
  constexpr int BOXES_A = Stage::BM / 64, BOXES_B = Stage::BN / 64;
  const unsigned in_b = stage + Stage::A_BYTES;
  mbarrier_arrive_expect_tx(full, Stage::BYTES);
#pragma unroll
  for (int i = 0; i < (SHARES_B ? BOXES_A : BOXES_A / BLOCKS); ++i) {
    const int box = SHARES_B ? i : rank * (BOXES_A / BLOCKS) + i, row = origin.row + 64 * box;
    if constexpr (SHARES_B) {
      tma_load_2d(stage + box * matmill::BOX_BYTES, a, full, k, row);
    } else {
      tma_load_multicast_2d(stage + box * matmill::BOX_BYTES, a, full, k, row, BOTH);
    }
  }
#pragma unroll
  for (int i = 0; i < (SHARES_B ? BOXES_B / BLOCKS : BOXES_B); ++i) {
    const int box = SHARES_B ? rank * (BOXES_B / BLOCKS) + i : i, column = origin.column + 64 * box;
    if constexpr (SHARES_B) {
      tma_load_multicast_2d(in_b + box * matmill::BOX_BYTES, b, full, column, k, BOTH);
    } else {
      tma_load_2d(in_b + box * matmill::BOX_BYTES, b, full, column, k);
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 1)
    multicast(const __grid_constant__ matmill::TensorMap A, const __grid_constant__ matmill::TensorMap B,
              const Scalar* C, const __grid_constant__ matmill::TensorMap D, int m, int n, int k, float alpha,
              float beta) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned stages = shared_address(shared), staging = stages + STAGES * Stage::BYTES;
  const unsigned full = staging + STAGING_BYTES, empty = full + 8 * STAGES;
  const int pairs = (m + Pair::BM - 1) / Pair::BM * ((n + Pair::BN - 1) / Pair::BN);
  const int steps = (k + Stage::BK - 1) / Stage::BK, group = int(threadIdx.x) / 128 - 1, rank = cluster_rank();
  const auto tile_of = [&](int pair) {
    matmill::Origin origin = matmill::tile_origin<Pair, Config::GROUP_M>(pair, m, n);
    (SHARES_B ? origin.row : origin.column) += rank * (SHARES_B ? Stage::BM : Stage::BN);
    return origin;
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4 * CONSUMERS * BLOCKS);
    }
    fence_mbarrier_init();
  }
  cluster_sync();  // a block must not multicast to one whose barriers do not exist yet

  matmill::PipelineSlot<STAGES> slot;
  if (group < 0) {
    setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
    if (threadIdx.x < 32 && elect_one()) {
      for (int pair = blockIdx.x / BLOCKS; pair < pairs; pair += gridDim.x / BLOCKS) {
        const matmill::Origin origin = tile_of(pair);
        for (int step = 0; step < steps; ++step) {
          mbarrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);
          load(stages + slot.stage * Stage::BYTES, full + 8 * slot.stage, &A, &B, origin, step * Stage::BK, rank);
          slot.next();
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
    const unsigned lane = threadIdx.x % 32;
    const auto release = [&](int stage) {
      if (lane < BLOCKS) mbarrier_arrive_cluster_relaxed(map_shared_rank(empty + 8 * stage, lane));
    };
    for (int pair = blockIdx.x / BLOCKS; pair < pairs; pair += gridDim.x / BLOCKS) {
      const matmill::Origin origin = tile_of(pair);
      Tile tile;
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        const unsigned stage = stages + slot.stage * Stage::BYTES;
        mbarrier_wait(full + 8 * slot.stage, slot.parity);
        tile.multiply(stage + group * matmill::BOX_BYTES, stage + Stage::A_BYTES, step == 0);
        wgmma_wait<1>();
        if (step > 0) release(before);
        before = slot.stage;
        slot.next();
      }
      tile.finish();
      release(before);
      tile.store_boxes(staging + group * (STAGING_BYTES / CONSUMERS), 1 + group, &D, C, origin.row + 64 * group,
                       origin.column, m, n, alpha, beta);
    }
    Tile::finish_stores();
    __syncwarp();
  }
  cluster_sync();  // the other block may still arrive at this one's barriers
}
