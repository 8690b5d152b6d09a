// D = alpha * A * B + beta * C for a B with few columns, any sizes and strides, on the FMA units; thin/tile.cuh has the
// main loop. One block per BM rows of D (grid.x), product of the batch (grid.y) and split-K slice (grid.z). For few
// rows the host passes the problem of D's transpose, whose partial sums are p_row and p_column apart.
//
//   one slice:        thin ─▶ D
//   several slices:   thin ─▶ partial sums [batch][slice][m * n] ─▶ splitk_reduce ─▶ D
#include "matmill/dtype/epilogue.cuh"
#include "kernels/splitk/split_k.cuh"
#include "matmill/ptx/dependent_launch.cuh"
#include "kernels/thin/tile.cuh"

using Tile = matmill::ThinTile<Scalar, Config>;

// A null `workspace` means one slice: this kernel writes D.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) thin(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  __shared__ __align__(16) unsigned char shared[Tile::SHARED_BYTES];
  const int first = blockIdx.x * Tile::BM;
  const Index batch = blockIdx.y;
  const matmill::KSlice slice = matmill::KSlice::of_block<Tile::BK>(k);
  A += batch * a_batch + first * a_row + slice.first * a_column;
  B += batch * b_batch + slice.first * b_row;

  Tile tile;
  tile.run(shared, A, a_row, a_column, m - first, B, b_row, b_column, n, slice.terms);
  if (workspace == nullptr) {
    tile.sum(shared, [&](int tile_row, int column, Acc sum) {
      const Index row = first + tile_row;
      if (row >= m || column >= n) return;
      const auto read_c = [&] { return C[batch * c_batch + row * c_row + column * c_column]; };
      D[batch * d_batch + row * d_row + column * d_column] = matmill::output_of(alpha, sum, beta, read_c);
    });
  } else {
    Acc* const own = workspace + (batch * gridDim.z + blockIdx.z) * m * n;
    tile.sum(shared, [&](int tile_row, int column, Acc sum) {
      const Index row = first + tile_row;
      if (row < m && column < n) own[row * p_row + column * p_column] = sum;
    });
  }
}
