// As `any_size`, with sums staged in shared memory before they are stored: see MmaGemm::store.
//
//   16 x WN sums of a warp ── 8-byte stores ──▶ staging[16][WN + 8] in float32 ── rows ──▶ D, 16 bytes per lane
//
// A warp's store then fills whole rows of 128 bytes: 4 requests for 16 rows of 64 columns, instead of 32 of single
// elements. C is read the same way. Where D's rows are not aligned, lanes write adjacent elements.
#include "kernels/hgemm/mma.cuh"

using Tile = matmill::MmaGemm<Scalar, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    epilogue(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
             int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin{int(blockIdx.y) * Tile::BM, int(blockIdx.x) * Tile::BN};

  Tile tile;
  tile.run(shared, Tile::CopyA(A + size_t(origin.row) * k, k, 1, m - origin.row, k),
           Tile::CopyB(B + origin.column, 1, n, n - origin.column, k), k);
  tile.store(shared, C, n, 1, D, n, 1, origin, m, n, alpha, beta);
}
