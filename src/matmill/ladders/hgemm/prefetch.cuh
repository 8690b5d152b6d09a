// As `swizzled`, with register prefetch: the next step's tiles load while this step's are multiplied.
//
//   step t   barrier: tile t complete │ start loading tile t+1 into registers │ multiply tile t
//            barrier: tile t free     │ registers into shared memory
//
// This does by hand what cp.async does, and costs registers: 12 vectors of 16 bytes per thread.
#include "ladders/hgemm/next_tiles.cuh"
#include "kernels/shared/swizzle.cuh"
#include "kernels/hgemm/warp_tile.cuh"

constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
constexpr int WM = BM / Config::WARPS_M, WN = BN / Config::WARPS_N, THREADS = Config::WARPS_M * Config::WARPS_N * 32;
using Tile = matmill::WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
constexpr int V = 16 / sizeof(Scalar);                                   // elements per copy
constexpr int A_ROW = BK * sizeof(Scalar), B_ROW = BN * sizeof(Scalar);  // bytes
static_assert((BM + BN) * BK * int(sizeof(Scalar)) == Config::SHARED_BYTES, "host and device must agree");

extern "C" __global__ void __launch_bounds__(THREADS)
    prefetch(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
             int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const a = shared;          // [BM][BK]
  unsigned char* const b = a + BM * A_ROW;  // [BK][BN]
  const unsigned a_tile = matmill::ptx::shared_address(a), b_tile = matmill::ptx::shared_address(b);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = warp / Config::WARPS_N * WM, column = warp % Config::WARPS_N * WN;
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  matmill::NextTiles<Scalar, BM, BN, BK, THREADS> next(A, B, row0, column0, n, k);
  Tile tile;
  if (k > 0) {
    next.fetch(n, k);
    next.put(a, b);
  }
  for (int k0 = 0; k0 < k; k0 += BK) {
    __syncthreads();
    if (k0 + BK < k) next.fetch(n, k);
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      Tile::Fragment f;
#pragma unroll
      for (int i = 0; i < Tile::TM; ++i)
        matmill::ptx::ldmatrix<false>(
            f.a[i], a_tile + matmill::swizzled<A_ROW>(row + i * 16 + lane % 16, kk / V + lane / 16));
#pragma unroll
      for (int j = 0; j < Tile::TN / 2; ++j)
        matmill::ptx::ldmatrix<true>(
            f.b[j], b_tile + matmill::swizzled<B_ROW>(kk + lane % 16, column / V + j * 2 + lane / 16));
      tile.multiply(f);
    }
    __syncthreads();
    if (k0 + BK < k) next.put(a, b);
  }
  tile.store_pairs(C, D, (row0 + row) * n + column0 + column, n, alpha, beta);
}
