// As `hierarchical`, with both tiles copied 16 bytes at a time and all copies of a step in flight together.
//
//   global ── 16 bytes per load ──▶ shared a[BM][BK], b[BK][BN] ── ldmatrix ──▶ registers ── mma ──▶ sums
//
// The loop has a constant trip count, so it is unrolled: all loads of a step are issued before the first store. Stores
// fill whole rows of banks; reads still take 8 wavefronts per 8x8 matrix.
#include "kernels/hgemm/warp_tile.cuh"
#include "matmill/dtype/word.cuh"

constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
constexpr int WM = BM / Config::WARPS_M, WN = BN / Config::WARPS_N, THREADS = Config::WARPS_M * Config::WARPS_N * 32;
using Tile = matmill::WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
constexpr int V = 16 / sizeof(Scalar);  // elements per copy
static_assert((BM + BN) * BK * int(sizeof(Scalar)) == Config::SHARED_BYTES, "host and device must agree");

extern "C" __global__ void __launch_bounds__(THREADS)
    vectorized(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
               int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  Scalar* const a = reinterpret_cast<Scalar*>(shared);  // [BM][BK]
  Scalar* const b = a + BM * BK;                        // [BK][BN]
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = warp / Config::WARPS_N * WM, column = warp % Config::WARPS_N * WN;
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  // This thread's first vectors; each further one is A_PASS or B_PASS rows below.
  constexpr int A_PASS = THREADS * V / BK, B_PASS = THREADS * V / BN;  // rows
  const Scalar* a_from = &A[(row0 + thread * V / BK) * k + thread * V % BK];
  const Scalar* b_from = &B[size_t(thread * V / BN) * n + column0 + thread * V % BN];

  Tile tile;
  for (int k0 = 0; k0 < k; k0 += BK) {
    const Scalar* from = a_from;
#pragma unroll
    for (int first = 0; first < BM * BK; first += THREADS * V, from += size_t(A_PASS) * k)
      matmill::copy<V>(&a[first + thread * V], from);
    from = b_from;
#pragma unroll
    for (int first = 0; first < BK * BN; first += THREADS * V, from += size_t(B_PASS) * n)
      matmill::copy<V>(&b[first + thread * V], from);
    a_from += BK;
    b_from += size_t(BK) * n;
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BK; kk += 16) {
      Tile::Fragment f;
#pragma unroll
      for (int i = 0; i < Tile::TM; ++i)
        matmill::ptx::ldmatrix<false>(
            f.a[i], matmill::ptx::shared_address(&a[(row + i * 16 + lane % 16) * BK + kk + lane / 16 * 8]));
#pragma unroll
      for (int j = 0; j < Tile::TN / 2; ++j)
        matmill::ptx::ldmatrix<true>(
            f.b[j], matmill::ptx::shared_address(&b[(kk + lane % 16) * BN + column + j * 16 + lane / 16 * 8]));
      tile.multiply(f);
    }
    __syncthreads();
  }
  tile.store_pairs(C, D, (row0 + row) * n + column0 + column, n, alpha, beta);
}
