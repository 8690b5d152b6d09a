// D = alpha * A * B + beta * C for any sizes and strides, on the plain FMA units; see simt_gemm.cuh for the pipeline.
// One block per BM x BN tile of D (grid.x), product of the batch (grid.y) and part of k (grid.z).
//
//   one part of k:   gemm ─▶ D
//   several:         gemm ─▶ sums of each part [batch][part][m][n] ─▶ join, share or finish ─▶ D
#include "matmill/ptx/order.cuh"
#include "matmill/dtype/epilogue.cuh"
#include "matmill/gemm/split_k.cuh"
#include "matmill/gemm/simt.cuh"
#include "matmill/ptx/order.cuh"

using Tile = matmill::SimtGemm<Scalar, Config>;

// Where `workspace` is null there is one slice of k, and D is made here.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    gemm(const __grid_constant__ Args args) {
  matmill::ptx::begin();
  extern __shared__ __align__(16) unsigned char shared[];
  const int m = args.m, n = args.n;
  const matmill::Origin origin = matmill::tile_of<Tile, Config::GROUP>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::Part part = matmill::Part::own<Config::BK>(args.k);
  const Scalar* const A = args.A + batch * args.a_batch + origin.row * args.a_row + part.first * args.a_column;
  const Scalar* const B = args.B + batch * args.b_batch + origin.column * args.b_column + part.first * args.b_row;

  Tile tile;
  tile.run(reinterpret_cast<Scalar*>(shared), Tile::CopyA(A, args.a_row, args.a_column, m - origin.row, part.terms),
           Tile::CopyB(B, args.b_column, args.b_row, n - origin.column, part.terms), part.terms);
  if (args.workspace == nullptr) {
    tile.store<Config::D_VEC>(args.C + batch * args.c_batch, args.c_row, args.c_column, args.D + batch * args.d_batch, args.d_row, args.d_column, origin, m, n, args.alpha,
                              args.beta);
  } else {
    Scalar* const own = args.workspace + (batch * gridDim.z + blockIdx.z) * m * n;
    tile.store<Config::D_VEC>(own, n, 1, own, n, 1, origin, m, n, Scalar(1), Scalar(0));
  }
}
