// The tile of transpose/tile.cuh, with vectors as wide as the alignment of all rows and columns allows.
#include "kernels/transpose/tile.cuh"

using Tile = matmill::TransposeTile<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM) wide(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char shared[];
  Tile::run(shared, ARGUMENTS);
}
