// D = alpha * A * B + beta * C for matrices of any sizes and strides on the tensor cores: 16-bit elements with float32
// sums, and float64. gemm/mma.cuh has the pipeline. One block per BM x BN tile of D (grid.x), product of the batch
// (grid.y) and split-K slice (grid.z). Only 16-bit matrices are repacked.
//
//   one slice:        hgemm ─▶ D
//   several slices:   hgemm ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
//   unaligned A or B: repack ─▶ copies with 16-byte aligned rows ─▶ hgemm reads them instead, 16 bytes at a time
#include "matmill/dtype/epilogue.cuh"
#include "kernels/hgemm/mma.cuh"
#include "kernels/splitk/split_k.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

// A null `workspace` means one slice: this kernel writes D. `*_first` is the offset of a matrix from its pointer, in
// elements: repacked copies are in the workspace, after its other contents.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) hgemm(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::KSlice slice = matmill::KSlice::of_block<Config::BK>(k);
  A += a_first + batch * a_batch + origin.row * a_row + slice.first * a_column;
  B += b_first + batch * b_batch + origin.column * b_column + slice.first * b_row;

  Tile tile;
  tile.run(shared, Tile::CopyA(A, a_row, a_column, m - origin.row, slice.terms),
           Tile::CopyB(B, b_column, b_row, n - origin.column, slice.terms), slice.terms);
  if (workspace == nullptr) {
    tile.store(shared, C + batch * c_batch, c_row, c_column, D + batch * d_batch, d_row, d_column, origin, m, n, alpha,
               beta);
  } else {
    tile.store_partial(workspace + (batch * gridDim.z + blockIdx.z) * m * n, origin, m, n);
  }
}
