// As `multistage`, for any m, n and k, on the pipeline of kernels/hgemm/mma.cuh; its header has the schedule.
//
// Copies past a matrix's end write zeros and read nothing; sums past D's end are not stored. cp.async copies rows
// aligned to 16, 8 or 4 bytes by that size. Where rows are aligned to 2 bytes (an odd k or n), elements pass one by one
// through registers and are stored to shared memory 16 bytes at a time. Stores are checked one by one.
//
// Fragments of the next step are read while this step's are multiplied, across the barrier too.
#include "kernels/hgemm/mma.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    any_size(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
             int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin{int(blockIdx.y) * Tile::BM, int(blockIdx.x) * Tile::BN};

  Tile tile;
  tile.run(shared, Tile::CopyA(A + size_t(origin.row) * k, k, 1, m - origin.row, k),
           Tile::CopyB(B + origin.column, 1, n, n - origin.column, k), k);

  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Tile::Warp::TM * 2; ++i) {
    const int row = origin.row + tile.row + i * 8 + lane / 4;
    if (row >= m) continue;
#pragma unroll
    for (int j = 0; j < Tile::Warp::TN * 2; ++j) {
      const int column = origin.column + tile.column + j / 2 * 8 + lane % 4 * 2 + j % 2;
      if (column >= n) continue;
      const float sum = tile.warp.sums[i / 2][j / 2][i % 2 * 2 + j % 2];
      const size_t place = size_t(row) * n + column;
      // beta = 0 must not read C: it may hold NaN
      D[place] = Scalar::rounded(beta == 0.0f ? alpha * sum : matmill::blend(alpha, sum, beta, C[place].widened()));
    }
  }
}
