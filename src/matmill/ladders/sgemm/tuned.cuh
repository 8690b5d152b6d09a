// The pipeline of kernels/gemm/simt.cuh on packed row-major matrices; kernels/gemm is its production twin
// for any strides. The header's table says which warp does what when.
#include "kernels/gemm/simt.cuh"

using Tile = matmill::SimtGemm<float, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    tuned(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
          float alpha, float beta) {
  extern __shared__ __align__(16) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);

  Tile tile;
  tile.run(reinterpret_cast<float*>(shared),
           Tile::CopyA(A + size_t(origin.row) * k, k, 1, m - origin.row, k),
           Tile::CopyB(B + origin.column, 1, n, n - origin.column, k), k);
  tile.store<Config::D_VEC>(C, n, 1, C, n, 1, origin, m, n, alpha, beta);
}
