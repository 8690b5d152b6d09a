// As `vectorized`, with swizzled shared tiles: the 16-byte pieces of every row are permuted.
//
//   piece p of row r is stored at p ^ (r % 8)  (a: CuTe's Swizzle<3, 3, 3> in elements; b, with longer rows: <3, 3, 4>)
//
// The eight rows of an 8x8 matrix are then in eight different groups of four banks: 1 wavefront. Stores go to the same
// rows as before, permuted, and remain free of conflicts. Without padding, tiles keep their size.
#include "kernels/shared/swizzle.cuh"
#include "kernels/hgemm/warp_tile.cuh"
#include "matmill/dtype/word.cuh"

constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
constexpr int WM = BM / Config::WARPS_M, WN = BN / Config::WARPS_N, THREADS = Config::WARPS_M * Config::WARPS_N * 32;
using Tile = matmill::WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
constexpr int V = 16 / sizeof(Scalar);                                   // elements per copy
constexpr int A_ROW = BK * sizeof(Scalar), B_ROW = BN * sizeof(Scalar);  // bytes
static_assert((BM + BN) * BK * int(sizeof(Scalar)) == Config::SHARED_BYTES, "host and device must agree");

extern "C" __global__ void __launch_bounds__(THREADS)
    swizzled(const Scalar* __restrict__ A, const Scalar* __restrict__ B, const Scalar* C, Scalar* D, int m, int n,
             int k, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const a = shared;          // [BM][BK]
  unsigned char* const b = a + BM * A_ROW;  // [BK][BN]
  const unsigned a_tile = matmill::ptx::shared_address(a), b_tile = matmill::ptx::shared_address(b);
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
    for (int first = 0; first < BM * BK; first += THREADS * V, from += size_t(A_PASS) * k) {
      const int i = first + thread * V;
      matmill::copy<V>(reinterpret_cast<Scalar*>(&a[matmill::swizzled<A_ROW>(i / BK, i % BK / V)]), from);
    }
    from = b_from;
#pragma unroll
    for (int first = 0; first < BK * BN; first += THREADS * V, from += size_t(B_PASS) * n) {
      const int i = first + thread * V;
      matmill::copy<V>(reinterpret_cast<Scalar*>(&b[matmill::swizzled<B_ROW>(i / BN, i % BN / V)]), from);
    }
    a_from += BK;
    b_from += size_t(BK) * n;
    __syncthreads();
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
  }
  tile.store_pairs(C, D, (row0 + row) * n + column0 + column, n, alpha, beta);
}
