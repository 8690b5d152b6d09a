// D = alpha * A * B + beta * C of 8-bit integers on the tensor cores, with C, D and sums of 32 bits that wrap around.
// hgemm/mma.cuh has the pipeline. One block per BM x BN tile of D (grid.x), product of the batch (grid.y) and split-K
// slice (grid.z).
//
//   one slice:        igemm ─▶ D
//   several slices:   igemm ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
//   A or B off 16 bytes along k: repack ─▶ a copy whose rows, along k, start on 16 bytes ─▶ igemm reads it instead
#include "matmill/dtype/epilogue.cuh"
#include "kernels/igemm/byte_tile.cuh"
#include "kernels/splitk/split_k.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

// A null `workspace` means one slice: this kernel writes D. `*_first` is the offset of a matrix from its pointer, in
// elements: repacked copies are in the workspace, after its other contents. Parameters are those of hgemm: C and D are
// of 32 bits all the same, and there is no bias.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) igemm(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const matmill::KSlice slice = matmill::KSlice::of_block<Config::BK>(k);
  const Index batch = blockIdx.y;
  A += a_first + batch * a_batch + origin.row * a_row + slice.first;
  B += b_first + batch * b_batch + origin.column * b_column + slice.first;

  Tile tile;
  tile.run(shared, Tile::CopyA(A, a_row, 1, m - origin.row, slice.terms),
           Tile::CopyB(B, b_column, 1, n - origin.column, slice.terms), slice.terms);
  if (workspace == nullptr) {
    Tile::Store::store(tile.warp, shared, reinterpret_cast<const Acc*>(C) + batch * c_batch, c_row, c_column,
                       reinterpret_cast<Acc*>(D) + batch * d_batch, d_row, d_column, origin.row + tile.row,
                       origin.column + tile.column, m, n, alpha, beta);
  } else {
    tile.store_partial(workspace + (batch * gridDim.z + blockIdx.z) * m * n, origin, m, n);
  }
}
