// D = alpha * X + beta * Y in one pass, for operands that lie any way; see turn.cuh.
#include "matmill/transpose/tile.cuh"

using Turn = matmill::Turn<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM)
    transpose_add(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char shared[];
  Turn::run(shared, args);
}
