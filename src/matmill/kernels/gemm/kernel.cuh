// D = alpha * A * B + beta * C for any sizes and strides, on the FMA units; gemm/simt.cuh has the pipeline. One block
// per BM x BN tile of D (grid.x), product of the batch (grid.y) and split-K slice (grid.z).
//
//   one slice:        gemm ─▶ D
//   several slices:   gemm ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
#include "matmill/dtype/epilogue.cuh"
#include "matmill/gemm/split_k.cuh"
#include "matmill/gemm/simt.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::SimtGemm<Scalar, Config>;

// A null `workspace` means one slice: this kernel writes D.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    gemm(const __grid_constant__ Args args) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const int m = args.m, n = args.n;
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::KSlice slice = matmill::KSlice::of_block<Config::BK>(args.k);
  const Scalar* const A = args.A + batch * args.a_batch + origin.row * args.a_row + slice.first * args.a_column;
  const Scalar* const B = args.B + batch * args.b_batch + origin.column * args.b_column + slice.first * args.b_row;

  Tile tile;
  tile.run(reinterpret_cast<Scalar*>(shared), Tile::CopyA(A, args.a_row, args.a_column, m - origin.row, slice.terms),
           Tile::CopyB(B, args.b_column, args.b_row, n - origin.column, slice.terms), slice.terms);
  if (args.workspace == nullptr) {
    tile.store<Config::D_VEC>(args.C + batch * args.c_batch, args.c_row, args.c_column, args.D + batch * args.d_batch,
                              args.d_row, args.d_column, origin, m, n, args.alpha, args.beta);
  } else {
    Scalar* const own = args.workspace + (batch * gridDim.z + blockIdx.z) * m * n;
    tile.store<Config::D_VEC>(own, n, 1, own, n, 1, origin, m, n, Scalar(1), Scalar(0));
  }
}
