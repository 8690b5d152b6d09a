// The tile of turn.cuh, with 16-byte vectors whatever the alignment: the production kernel's way.
#include "matmill/transpose/tile.cuh"

using Turn = matmill::Turn<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM)
    shifted(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char shared[];
  Turn::run(shared, args);
}
