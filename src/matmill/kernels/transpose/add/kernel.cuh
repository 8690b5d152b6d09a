// D = alpha * X + beta * Y in one pass, for operands in any layout; see transpose/tile.cuh.
#include "kernels/transpose/tile.cuh"

using Tile = matmill::TransposeTile<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM) transpose_add(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char shared[];
  Tile::run(shared, ARGUMENTS);
}
