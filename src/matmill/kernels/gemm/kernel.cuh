// D = alpha * A * B + beta * C for any sizes and strides, on the plain FMA units; see simt_gemm.cuh for the pipeline.
// One block per BM x BN tile of D (grid.x) and product of the batch (grid.y).
#include "matmill/tile/simt_gemm.cuh"

using Tile = matmill::SimtGemm<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    gemm(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n, int k,
         long long a_row, long long a_col, long long a_batch, long long b_row, long long b_col, long long b_batch,
         long long c_row, long long c_col, long long c_batch, long long d_row, long long d_col, long long d_batch,
         Scalar alpha, Scalar beta) {
  extern __shared__ __align__(16) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_of<Tile, Config::GROUP>(blockIdx.x, m, n);
  const long long batch = blockIdx.y;

  Tile tile;
  tile.run(reinterpret_cast<Scalar*>(shared),
           Tile::CopyA(A + batch * a_batch + origin.row * a_row, a_row, a_col, m - origin.row, k),
           Tile::CopyB(B + batch * b_batch + origin.column * b_col, b_col, b_row, n - origin.column, k), k);
  tile.store<Config::D_VEC>(C + batch * c_batch, c_row, c_col, D + batch * d_batch, d_row, d_col, origin, m, n, alpha,
                            beta);
}
