// C tile BM x BN per block, WM x WN = 64 x 64 per warp, 16 x 8 per mma: each level keeps its operands in the next
// smaller memory.
//
//   global ── 2 bytes per load ──▶ shared a[BM][BK], b[BK][BN] ── ldmatrix ──▶ registers ── mma ──▶ sums
//
//   per step: copy both tiles │ barrier: tiles complete │ BK / 16 times: read fragments, multiply │ barrier: tiles free
//
// ldmatrix.x4, as in every rung: lanes 0-15 address rows of the left 8 columns, lanes 16-31 those of the right 8. Rows
// of a are 128 bytes long and rows of b 256, so the eight rows of each 8x8 matrix are in the same four banks: 8
// wavefronts instead of 1.
#include "kernels/hgemm/warp_tile.cuh"

constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
constexpr int WM = BM / Config::WARPS_M, WN = BN / Config::WARPS_N, THREADS = Config::WARPS_M * Config::WARPS_N * 32;
using Tile = matmill::WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
static_assert((BM + BN) * BK * int(sizeof(Scalar)) == Config::SHARED_BYTES, "host and device must agree");

extern "C" __global__ void __launch_bounds__(THREADS)
    hierarchical(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
                 int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  Scalar* const a = reinterpret_cast<Scalar*>(shared);  // [BM][BK]
  Scalar* const b = a + BM * BK;                        // [BK][BN]
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row = warp / Config::WARPS_N * WM, column = warp % Config::WARPS_N * WN;
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  Tile tile;
  for (int k0 = 0; k0 < k; k0 += BK) {
#pragma unroll 1
    for (int i = thread; i < BM * BK; i += THREADS) a[i] = A[(row0 + i / BK) * k + k0 + i % BK];
#pragma unroll 1
    for (int i = thread; i < BK * BN; i += THREADS) b[i] = B[size_t(k0 + i / BN) * n + column0 + i % BN];
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
