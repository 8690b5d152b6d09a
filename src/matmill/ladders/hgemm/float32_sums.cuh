// As `epilogue`, with sums in float32, which cost twice the registers, and a raster order in groups of GROUP_M rows of
// tiles: concurrent blocks share rows of A and columns of B in L2.
#include "kernels/hgemm/mma.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    float32_sums(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
                 int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);

  Tile tile;
  tile.run(shared, Tile::CopyA(A + size_t(origin.row) * k, k, 1, m - origin.row, k),
           Tile::CopyB(B + origin.column, 1, n, n - origin.column, k), k);
  tile.store(shared, C, n, 1, D, n, 1, origin, m, n, alpha, beta);
}
