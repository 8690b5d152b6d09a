// D = alpha * A * B + beta * C for any sizes and strides, on the plain FMA units; see simt_gemm.cuh for the pipeline.
// One block per BM x BN tile of D (grid.x), product of the batch (grid.y) and part of k (grid.z).
//
//   one part of k:   gemm ─▶ D
//   several:         gemm ─▶ sums of each part [batch][part][m][n] ─▶ join, share or finish ─▶ D
#include "matmill/inner/outputs.cuh"
#include "matmill/tile/parts.cuh"
#include "matmill/tile/simt_gemm.cuh"

using Tile = matmill::SimtGemm<Scalar, Config>;

// Where `parts` is null there is one part of k, and D is made here.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    gemm(const Scalar* A, const Scalar* B, const Scalar* C, Scalar* D, int m, int n, int k,
         Index a_row, Index a_col, Index a_batch, Index b_row, Index b_col, Index b_batch, Index c_row, Index c_col,
         Index c_batch, Index d_row, Index d_col, Index d_batch, Scalar alpha, Scalar beta,
         Scalar* parts) {
  matmill::ptx::begin();
  extern __shared__ __align__(16) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_of<Tile, Config::GROUP>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::Part part = matmill::Part::own<Config::BK>(k);
  A += batch * a_batch + origin.row * a_row + part.first * a_col;
  B += batch * b_batch + origin.column * b_col + part.first * b_row;

  Tile tile;
  tile.run(reinterpret_cast<Scalar*>(shared), Tile::CopyA(A, a_row, a_col, m - origin.row, part.terms),
           Tile::CopyB(B, b_col, b_row, n - origin.column, part.terms), part.terms);
  if (parts == nullptr) {
    tile.store<Config::D_VEC>(C + batch * c_batch, c_row, c_col, D + batch * d_batch, d_row, d_col, origin, m, n, alpha,
                              beta);
  } else {
    Scalar* const own = parts + (batch * gridDim.z + blockIdx.z) * m * n;
    tile.store<Config::D_VEC>(own, n, 1, own, n, 1, origin, m, n, Scalar(1), Scalar(0));
  }
}
