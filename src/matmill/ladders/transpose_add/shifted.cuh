// The tile of transpose/tile.cuh, with 16-byte vectors whatever the alignment, as in the production kernel.
#include "kernels/transpose/tile.cuh"

using Tile = matmill::TransposeTile<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM) shifted(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char shared[];
  Tile::run(shared, ARGUMENTS);
}
