// D = alpha * A * B + beta * C for 16-bit matrices of any sizes and strides, on the tensor cores with float32 sums; see
// mma_gemm.cuh for the pipeline. One block per BM x BN tile of D (grid.x), product of the batch (grid.y) and part of k
// (grid.z).
//
//   one part of k:     hgemm ─▶ D
//   several:           hgemm ─▶ sums of each part [batch][part][m][n] ─▶ join, share or finish ─▶ D
//   lines of A or B    pad ─▶ copies with lines on 16 bytes ─▶ hgemm, which reads them instead, 16 bytes at a time
//   not on 16 bytes:
#include "matmill/inner/outputs.cuh"
#include "matmill/tile/mma_gemm.cuh"
#include "matmill/tile/pad.cuh"
#include "matmill/tile/parts.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

// Keeps the sums of one part of k as they lie in registers: pairs of a lane, 32 bytes to each of eight rows.
__device__ __forceinline__ void keep(const Tile& tile, Acc* to, matmill::Origin origin, int m, int n) {
  const int lane = threadIdx.x % 32, row = origin.row + tile.row + lane / 4,
            column = origin.column + tile.column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Tile::Warp::TM * 2; ++i) {
    const int r = row + i * 8;
#pragma unroll
    for (int j = 0; j < Tile::Warp::TN; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = column + j * 8 + e;
        if (r < m && c < n) to[Index(r) * n + c] = tile.warp.sums[i / 2][j][i % 2 * 2 + e];
      }
    }
  }
}

// Where `parts` is null there is one part of k, and D is made here. `*_first` is how far behind the pointer a matrix
// begins, in elements: copies lie in the workspace, behind whatever else is there.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    hgemm(const Scalar* A, const Scalar* B, const Scalar* C, Scalar* D, int m, int n, int k,
          Index a_row, Index a_col, Index a_batch, Index b_row, Index b_col, Index b_batch, Index c_row, Index c_col,
          Index c_batch, Index d_row, Index d_col, Index d_batch, Acc alpha, Acc beta, Index a_first, Index b_first,
          Acc* parts) {
  matmill::ptx::begin();
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_of<Tile, Config::GROUP>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::Part part = matmill::Part::own<Config::BK>(k);
  A += a_first + batch * a_batch + origin.row * a_row + part.first * a_col;
  B += b_first + batch * b_batch + origin.column * b_col + part.first * b_row;

  Tile tile;
  tile.run(shared, Tile::CopyA(A, a_row, a_col, m - origin.row, part.terms),
           Tile::CopyB(B, b_col, b_row, n - origin.column, part.terms), part.terms);
  if (parts == nullptr) {
    tile.store(shared, C + batch * c_batch, c_row, c_col, D + batch * d_batch, d_row, d_col, origin, m, n, alpha, beta);
  } else {
    keep(tile, parts + (batch * gridDim.z + blockIdx.z) * m * n, origin, m, n);
  }
}
