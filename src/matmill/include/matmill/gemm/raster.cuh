// The order in which blocks take the tiles of D.
#pragma once

namespace matmill {

// The first row and column of a block's tile.
struct Origin {
  int row, column;
};

// Where a block's tile of D begins: tiles are walked in bands GROUP tiles high, so that the blocks that run at the same
// time share rows of A and columns of B in L2.
template <class Tile, int GROUP>
__device__ __forceinline__ Origin tile_of(int index, int m, int n) {
  const int tiles_m = (m + Tile::BM - 1) / Tile::BM, tiles_n = (n + Tile::BN - 1) / Tile::BN;
  const int band = index / (GROUP * tiles_n);
  const int height = min(GROUP, tiles_m - band * GROUP);
  const int within = index - band * GROUP * tiles_n;
  return {(band * GROUP + within % height) * Tile::BM, within / height * Tile::BN};
}

}  // namespace matmill
