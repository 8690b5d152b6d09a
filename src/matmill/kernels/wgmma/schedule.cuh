// Which work tiles a persistent block computes: tiles of D in raster order, for each slice of k, for each product. With
// CLUSTER_K the blocks of a cluster have the slices of one tile.
#pragma once

#include "kernels/shared/raster.cuh"

namespace matmill {

struct WorkTile {
  int row, column;      // first of D
  int first, steps;     // k-steps of the slice
  int slice, batch;
  int origin_k = 0;     // term of k from which k-steps count
};

template <class Tile, int GROUP_M>
struct WgmmaSchedule {
  // A cluster's blocks have neighbouring tiles.
  struct ClusterTile {
    static constexpr int BM = Tile::BM * Tile::CLUSTER_M, BN = Tile::BN * Tile::CLUSTER_N;
  };

  int m, n, steps, slices, tiles, total;

  __device__ __forceinline__ WgmmaSchedule(int m, int n, int k, int slices, int batch) : m(m), n(n), slices(slices) {
    steps = (k + Tile::BK - 1) / Tile::BK;
    tiles = (m + ClusterTile::BM - 1) / ClusterTile::BM * ((n + ClusterTile::BN - 1) / ClusterTile::BN);
    total = tiles * (Tile::CLUSTER_K > 1 ? 1 : slices) * batch;
  }

  // Slices differ by at most one step.
  __device__ __forceinline__ int first_step(int slice) const {
    return slices == 1 ? slice * steps : int(static_cast<long long>(steps) * slice / slices);
  }

  // `rank` is the block's within its cluster.
  __device__ __forceinline__ WorkTile at(int index, int rank) const {
    const Origin origin = tile_origin<ClusterTile, GROUP_M>(index % tiles, m, n);
    const int rest = index / tiles;
    const int slice = Tile::CLUSTER_K > 1 ? rank : rest % slices, first = first_step(slice);
    return {origin.row + (Tile::CLUSTER_M > 1 ? rank / Tile::CLUSTER_N * Tile::BM : 0),
            origin.column + (Tile::CLUSTER_N > 1 ? rank % Tile::CLUSTER_N * Tile::BN : 0),
            first,
            first_step(slice + 1) - first,
            slice,
            Tile::CLUSTER_K > 1 ? rest : rest / slices};
  }
};

// The work tiles of a block from `index` on, one after another.
template <class Schedule>
struct WorkTiles {
  const Schedule& schedule;
  int rank, index, stride;
  WorkTile tile;

  __device__ __forceinline__ WorkTiles(const Schedule& schedule, int rank, int index, int stride)
      : schedule(schedule), rank(rank), index(index), stride(stride), tile(schedule.at(index, rank)) {}

  __device__ __forceinline__ bool any() const { return index < schedule.total; }
  __device__ __forceinline__ bool another() const { return index + stride < schedule.total; }

  __device__ __forceinline__ void next(int count = 1) {
    index += count * stride;
    if (any()) tile = schedule.at(index, rank);
  }
};

}  // namespace matmill
