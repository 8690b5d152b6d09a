// Raster order: which tile of D a block computes.
#pragma once

namespace matmill {

// The first row and column of a block's tile of D.
struct Origin {
  int row, column;
};

// Tiles are visited in groups of GROUP_M rows of tiles, column by column within a group: concurrent blocks share rows of
// A and columns of B in L2.
template <class Tile, int GROUP_M>
__device__ __forceinline__ Origin tile_origin(int index, int m, int n) {
  const int tiles_m = (m + Tile::BM - 1) / Tile::BM, tiles_n = (n + Tile::BN - 1) / Tile::BN;
  const int group = index / (GROUP_M * tiles_n);
  const int height = min(GROUP_M, tiles_m - group * GROUP_M);
  const int within = index - group * GROUP_M * tiles_n;
  return {(group * GROUP_M + within % height) * Tile::BM, within / height * Tile::BN};
}

}  // namespace matmill
