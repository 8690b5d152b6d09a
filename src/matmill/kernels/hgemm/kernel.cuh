// D = alpha * A * B + beta * C for matrices of any sizes and strides on the tensor cores: 16-bit elements with float32
// sums, float32 as sums of two tf32 numbers, and float64. hgemm/mma.cuh has the pipeline. One block per BM x BN tile of
// D (grid.x), product of the batch (grid.y) and split-K slice (grid.z). Only 16-bit matrices are repacked.
//
//   one slice:        hgemm ─▶ D
//   several slices:   hgemm ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
//   unaligned A or B: repack ─▶ copies with 16-byte aligned rows ─▶ hgemm reads them instead, 16 bytes at a time
#include "matmill/dtype/epilogue.cuh"
#include "kernels/hgemm/mma.cuh"
#include "kernels/splitk/split_k.cuh"
#include "matmill/ptx/block_index.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

// A null `workspace` means one slice: this kernel writes D. `*_first` is the offset of a matrix from its pointer, in
// elements: repacked copies are in the workspace, after its other contents.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) hgemm(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(128) unsigned char shared[];
  const auto work_of = [&](uint3 block) {
    const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(block.x, m, n);
    const matmill::KSlice slice = matmill::KSlice::of<Config::BK>(k, block.z);
    return Tile::Work{A + a_first + block.y * a_batch + origin.row * a_row + slice.first * a_column,
                      B + b_first + block.y * b_batch + origin.column * b_column + slice.first * b_row, origin,
                      slice.terms};
  };
  const Tile::Work work = work_of(blockIdx);
  const Index batch = blockIdx.y;

  Tile tile;
  tile.run(shared, Tile::CopyA(work.a, a_row, a_column, m - work.origin.row, work.terms),
           Tile::CopyB(work.b, b_column, b_row, n - work.origin.column, work.terms), work.terms);
  tile.complete([&] { return work_of(matmill::ptx::block_index()); }, a_row, a_column, b_row, b_column, m, n);
  if (workspace == nullptr) {
    tile.store_all(shared, C + batch * c_batch, c_row, c_column, bias, bias_stride, D + batch * d_batch, d_row,
                   d_column, work.origin, m, n, alpha, beta);
  } else {
    tile.store_partial(workspace + (batch * gridDim.z + blockIdx.z) * m * n, work.origin, m, n);
  }
}
