// As `tf32x3`, with a warp tile (hgemm/warp_tile_f32.cuh) whose sums on the tensor cores are of 32 terms of k: they start
// from zero, and FMA units, which round to nearest, add them to sums of their own.
#include "kernels/hgemm/mma.cuh"

using Tile = matmill::MmaGemm<float, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    promoted(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
             float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Tile::Work work{A + size_t(origin.row) * k, B + origin.column, origin, k};

  Tile tile;
  tile.run(shared, Tile::CopyA(work.a, k, 1, m - origin.row, k), Tile::CopyB(work.b, 1, n, n - origin.column, k), k);
  tile.complete([&] { return work; }, k, 1, n, 1, m, n);
  tile.store(shared, C, n, 1, C, n, 1, origin, m, n, alpha, beta);
}
