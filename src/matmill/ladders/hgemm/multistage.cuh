// As `double_buffer`, with cp.async in place of registers, and STAGES tiles in flight.
//
//   step t   wait until tile t has landed │ barrier │ start copying tile t+STAGES-1 │ multiply tile t
//
// The barrier publishes tile t and proves that all have finished with tile t-1, into whose stage tile t+STAGES-1 goes.
#include "kernels/shared/swizzle.cuh"
#include "kernels/hgemm/warp_tile.cuh"

constexpr int STAGES = Config::STAGES;
constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
constexpr int WM = BM / Config::WARPS_M, WN = BN / Config::WARPS_N, THREADS = Config::WARPS_M * Config::WARPS_N * 32;
using Tile = matmill::WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
constexpr int V = 16 / sizeof(Scalar);                                   // elements per copy
constexpr int A_ROW = BK * sizeof(Scalar), B_ROW = BN * sizeof(Scalar);  // bytes
constexpr int STAGE = BM * A_ROW + BK * B_ROW;                           // bytes: a's tile, then b's
static_assert(STAGES * STAGE == Config::SHARED_BYTES, "host and device must agree");

extern "C" __global__ void __launch_bounds__(THREADS)
    multistage(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
               int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned a_first = matmill::ptx::shared_address(shared);  // [STAGES][BM][BK]
  const unsigned b_first = a_first + BM * A_ROW;                  // [STAGES][BK][BN]
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = warp / Config::WARPS_N * WM, column = warp % Config::WARPS_N * WN;
  // This lane's row of the warp's first matrices; the others differ by an XOR and an addition of constants.
  const unsigned a_lane = a_first + matmill::swizzled<A_ROW>(row + lane % 16, lane / 16);
  const unsigned b_lane = b_first + matmill::swizzled<B_ROW>(lane % 16, column / V + lane / 16);
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  // This thread's first vectors; each further one is A_PASS or B_PASS rows below.
  constexpr int A_PASS = THREADS * V / BK, B_PASS = THREADS * V / BN;  // rows
  const Scalar* a_from = &A[(row0 + thread * V / BK) * k + thread * V % BK];
  const Scalar* b_from = &B[size_t(thread * V / BN) * n + column0 + thread * V % BN];
  auto copy = [&](bool more, int stage) {
    if (more) {
      const Scalar* from = a_from;
#pragma unroll
      for (int s = 0; s < BM / A_PASS; ++s, from += size_t(A_PASS) * k) {
        const int i = (s * THREADS + thread) * V;
        matmill::ptx::cp_async_zfill<16>(a_first + stage + matmill::swizzled<A_ROW>(i / BK, i % BK / V), from, true);
      }
      from = b_from;
#pragma unroll
      for (int s = 0; s < BK / B_PASS; ++s, from += size_t(B_PASS) * n) {
        const int i = (s * THREADS + thread) * V;
        matmill::ptx::cp_async_zfill<16>(b_first + stage + matmill::swizzled<B_ROW>(i / BN, i % BN / V), from, true);
      }
      a_from += BK;
      b_from += size_t(BK) * n;
    }
    matmill::ptx::cp_async_commit();  // an empty group past the end: groups count tiles
  };

  Tile tile;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) copy(s * BK < k, s * STAGE);
  int stage = 0, writing = (STAGES - 1) * STAGE;
  for (int k0 = 0; k0 < k; k0 += BK) {
    matmill::ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    copy(k0 + (STAGES - 1) * BK < k, writing);
    writing = stage;
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
    stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
  }
  tile.store_pairs(C, D, (row0 + row) * n + column0 + column, n, alpha, beta);
}
