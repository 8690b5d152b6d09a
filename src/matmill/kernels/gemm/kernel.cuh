// D = alpha * A * B + beta * C for any sizes and strides, on the FMA units; gemm/simt.cuh has the pipeline. One block
// per BM x BN tile of D (grid.x), product of the batch (grid.y) and split-K slice (grid.z).
//
//   one slice:        gemm ─▶ D
//   several slices:   gemm ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
#include "matmill/dtype/epilogue.cuh"
#include "kernels/gemm/simt.cuh"
#include "kernels/splitk/split_k.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::SimtGemm<Scalar, Config>;

// A null `workspace` means one slice: this kernel writes D. Where sums are wider than Scalar there always is one.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) gemm(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::KSlice slice = matmill::KSlice::of_block<Config::BK>(k);
  A += batch * a_batch + origin.row * a_row + slice.first * a_column;
  B += batch * b_batch + origin.column * b_column + slice.first * b_row;

  Tile tile;
  tile.run(reinterpret_cast<Scalar*>(shared), Tile::CopyA(A, a_row, a_column, m - origin.row, slice.terms),
           Tile::CopyB(B, b_column, b_row, n - origin.column, slice.terms), slice.terms);
  // One store for both: it multiplies by alpha even where that is 1. Sums that are stored as they are would have to be
  // in four consecutive registers, which costs the FMAs of the main loop register-bank conflicts.
  const Acc* c = nullptr;
  Acc* d = workspace + (batch * gridDim.z + blockIdx.z) * m * n;
  if (sizeof(Acc) == sizeof(Scalar) && workspace == nullptr) {
    c = reinterpret_cast<const Acc*>(C + batch * c_batch);
    d = reinterpret_cast<Acc*>(D + batch * d_batch);
  } else {
    d_row = n;
    d_column = 1;
    alpha = 1;
    beta = 0;
  }
  tile.store<Config::D_VEC>(c, c_row, c_column, d, d_row, d_column, origin, m, n, alpha, beta);
}
