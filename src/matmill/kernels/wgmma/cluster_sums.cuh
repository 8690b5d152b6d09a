// Split-K inside a cluster: each block has a slice of a tile's k, and the first one adds the sums of all.
//
//   blocks 1, ...   sums ──▶ own shared memory, where the stages were ──┐ barrier of the cluster
//   block 0         sums + those of block 1, 2, ... in order ◀──────────┘ ──▶ epilogue
//
// A cluster computes one tile, so no stage is loaded any more.
#pragma once

#include "matmill/ptx/barrier.cuh"
#include "matmill/ptx/cluster.cuh"
#include "matmill/ptx/st_shared.cuh"
#include "kernels/wgmma/tile.cuh"

namespace matmill {

// Called by the consumers of all blocks of the cluster, while the producers call cluster_sync(). `stages` is the address
// of the stages, `barrier` a named barrier of the consumers. Afterwards block 0 has the sums; the others must not leave
// before it has read theirs, which the next cluster_sync() proves.
template <class Tile>
__device__ __forceinline__ void add_in_cluster(typename Tile::Sums& sums, unsigned stages, int rank, int barrier) {
  constexpr int THREADS = 128 * Tile::CONSUMERS;
  const unsigned own = stages + (threadIdx.x - 128) * 16;
  if (rank > 0) {
    ptx::barrier_sync<THREADS>(barrier);  // all products have read their stages
#pragma unroll
    for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::BN / 2; j += 4) {
        ptx::st_shared_v4(own + (i * (Tile::BN / 8) + j / 4) * THREADS * 16,
                          float4{sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]});
      }
    }
  }
  ptx::cluster_sync();
  if (rank > 0) return;
#pragma unroll 1
  for (int block = 1; block < Tile::CLUSTER_K; ++block) {
    const unsigned theirs = ptx::map_shared_rank(own, block);
#pragma unroll
    for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::BN / 2; j += 4) {
        const float4 x = ptx::load_shared_cluster_v4(theirs + (i * (Tile::BN / 8) + j / 4) * THREADS * 16);
        sums[i][j] += x.x, sums[i][j + 1] += x.y, sums[i][j + 2] += x.z, sums[i][j + 3] += x.w;
      }
    }
  }
}

}  // namespace matmill
