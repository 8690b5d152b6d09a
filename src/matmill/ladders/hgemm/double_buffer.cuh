// As `tile_shape`, with two buffers for each tile and one barrier per step.
//
//   step t   barrier │ start loading tile t+1 into registers │ multiply tile t │ registers into the other buffer
//
// The one barrier publishes tile t. It also proves that all threads have finished tile t-1, whose buffer is written
// next.
#include "ladders/hgemm/next_tiles.cuh"
#include "kernels/shared/swizzle.cuh"
#include "kernels/hgemm/warp_tile.cuh"

constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
constexpr int WM = BM / Config::WARPS_M, WN = BN / Config::WARPS_N, THREADS = Config::WARPS_M * Config::WARPS_N * 32;
using Tile = matmill::WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
constexpr int V = 16 / sizeof(Scalar);                                   // elements per copy
constexpr int A_ROW = BK * sizeof(Scalar), B_ROW = BN * sizeof(Scalar);  // bytes
constexpr int STAGE = BM * A_ROW + BK * B_ROW;                           // bytes: a's tile, then b's
static_assert(2 * STAGE == Config::SHARED_BYTES, "host and device must agree");

extern "C" __global__ void __launch_bounds__(THREADS)
    double_buffer(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m,
                  int n, int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const a = shared;          // [2 stages][BM][BK]
  unsigned char* const b = a + BM * A_ROW;  // [2 stages][BK][BN]
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = warp / Config::WARPS_N * WM, column = warp % Config::WARPS_N * WN;
  // This lane's row of the warp's first matrices; the others differ by an XOR and an addition of constants.
  const unsigned a_lane = matmill::ptx::shared_address(a) + matmill::swizzled<A_ROW>(row + lane % 16, lane / 16);
  const unsigned b_lane = matmill::ptx::shared_address(b) + matmill::swizzled<B_ROW>(lane % 16, column / V + lane / 16);
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  matmill::NextTiles<Scalar, BM, BN, BK, THREADS> next(A, B, row0, column0, n, k);
  Tile tile;
  if (k > 0) {
    next.fetch(n, k);
    next.put(a, b);
  }
  int stage = 0;
  for (int k0 = 0; k0 < k; k0 += BK) {
    __syncthreads();
    if (k0 + BK < k) next.fetch(n, k);
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      Tile::Fragment f;
#pragma unroll
      for (int i = 0; i < Tile::TM; ++i)
        matmill::ptx::ldmatrix<false>(f.a[i], ((a_lane + stage) ^ (kk * 2)) + i * 16 * A_ROW);
#pragma unroll
      for (int j = 0; j < Tile::TN / 2; ++j)
        matmill::ptx::ldmatrix<true>(f.b[j], ((b_lane + stage) ^ (j * 32 % 128)) + j * 32 / 128 * 128 + kk * B_ROW);
      tile.multiply(f);
    }
    stage = STAGE - stage;
    if (k0 + BK < k) next.put(a + stage, b + stage);
  }
  tile.store_pairs(C, D, (row0 + row) * n + column0 + column, n, alpha, beta);
}
