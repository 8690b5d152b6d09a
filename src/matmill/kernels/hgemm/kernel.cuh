// D = alpha * A * B + beta * C for 16-bit matrices of any sizes and strides, on the tensor cores with float32 sums; see
// mma_gemm.cuh for the pipeline. One block per BM x BN tile of D (grid.x), product of the batch (grid.y) and part of k
// (grid.z).
//
//   one part of k:     hgemm ─▶ D
//   several:           hgemm ─▶ sums of each part [batch][part][m][n] ─▶ join, share or finish ─▶ D
//   lines of A or B    pad ─▶ copies with lines on 16 bytes ─▶ hgemm, which reads them instead, 16 bytes at a time
//   not on 16 bytes:
#include "matmill/ptx/order.cuh"
#include "matmill/dtype/epilogue.cuh"
#include "matmill/gemm/mma.cuh"
#include "matmill/gemm/split_k.cuh"
#include "matmill/ptx/order.cuh"

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

// Where `workspace` is null there is one slice of k, and D is made here. `*_first` is how far behind the pointer a matrix
// begins, in elements: copies are stored in the workspace, behind whatever else is there.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    hgemm(const __grid_constant__ Args args) {
  matmill::ptx::begin();
  extern __shared__ __align__(128) unsigned char shared[];
  const int m = args.m, n = args.n;
  const matmill::Origin origin = matmill::tile_of<Tile, Config::GROUP>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::Part part = matmill::Part::own<Config::BK>(args.k);
  const Scalar* const A =
      args.A + args.a_first + batch * args.a_batch + origin.row * args.a_row + part.first * args.a_column;
  const Scalar* const B =
      args.B + args.b_first + batch * args.b_batch + origin.column * args.b_column + part.first * args.b_row;

  Tile tile;
  tile.run(shared, Tile::CopyA(A, args.a_row, args.a_column, m - origin.row, part.terms),
           Tile::CopyB(B, args.b_column, args.b_row, n - origin.column, part.terms), part.terms);
  if (args.workspace == nullptr) {
    tile.store(shared, args.C + batch * args.c_batch, args.c_row, args.c_column, args.D + batch * args.d_batch, args.d_row, args.d_column, origin, m, n, args.alpha, args.beta);
  } else {
    keep(tile, args.workspace + (batch * gridDim.z + blockIdx.z) * m * n, origin, m, n);
  }
}
