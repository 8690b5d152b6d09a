// The tile of turn.cuh, with 16-byte vectors whatever the alignment: the production kernel's way.
#include "matmill/geam/turn.cuh"

using Turn = matmill::Turn<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM)
    shifted(const Scalar* X, const Scalar* Y, Scalar* D, int m, int n, Index x_row, Index x_column, Index x_batch,
       Index y_row, Index y_column, Index y_batch, Index d_row, Index d_column, Index d_batch, Turn::Acc alpha,
       Turn::Acc beta) {
  extern __shared__ __align__(16) unsigned char shared[];
  Turn::run(shared, X, Y, D, m, n, x_row, x_column, x_batch, y_row, y_column, y_batch, d_row, d_column, d_batch, alpha,
            beta);
}
