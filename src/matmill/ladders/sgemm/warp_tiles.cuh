// C tile 128x256 per block of 8 warps in 2x4, a 64x64 tile per warp, 4x8 lanes, 16x8 outputs per thread.
//
//   warp tile 64x64      lane bits 4 3 2 1 0
//   rows:    lane_m =               2 1      (4 lanes, 16 rows each as four vectors, 16 rows apart)
//   columns: lane_n =           4 3     0    (8 lanes, 8 columns each as two vectors, 32 columns apart)
//
// Bit 0 is a column bit and bit 1 a row bit, so lanes 2i and 2i+1 read the same vector of A, lanes i and i^2 the same
// vector of B: the two conditions on which the hardware serves two quarter-warps of a 16-byte read in one pass.
// The pipeline is that of `async_copy`.
#include "matmill/ptx/cp_async.cuh"

struct alignas(16) Vector {
  float x[4];
};

extern "C" __global__ void __launch_bounds__(256, 1)
    warp_tiles(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
               float alpha, float beta) {
  constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, TM = Config::TM, TN = Config::TN;
  __shared__ __align__(16) float a[2][BK][BM + 4];
  __shared__ __align__(16) float b[2][BK][BN];

  const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const unsigned lane_m = lane / 2 % 4, lane_n = lane % 2 + lane / 8 * 2;
  const unsigned row = warp / 4 * 64 + lane_m * 4, column = warp % 4 * 64 + lane_n * 4;
  const unsigned a_k = thread % 8, a_row = thread / 8;           // first word of A to copy; others 32 rows apart
  const unsigned b_k = thread / 64, b_column = thread % 64 * 4;  // first vector of B to copy; another 4 k below
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  auto copy = [&](int k0, int buffer) {
#pragma unroll
    for (int i = 0; i < BM; i += 32) {
      matmill::ptx::cp_async_zfill<4>(matmill::ptx::shared_address(&a[buffer][a_k][a_row + i]),
                                        &A[(row0 + a_row + i) * k + k0 + a_k], true);
    }
#pragma unroll
    for (int i = 0; i < BK; i += 4) {
      matmill::ptx::cp_async_zfill<16>(matmill::ptx::shared_address(&b[buffer][b_k + i][b_column]),
                                         &B[size_t(k0 + b_k + i) * n + column0 + b_column], true);
    }
    matmill::ptx::cp_async_commit();
  };

  float acc[TM][TN] = {};
  if (k > 0) copy(0, 0);
  for (int k0 = 0, buffer = 0; k0 < k; k0 += BK, buffer ^= 1) {
    matmill::ptx::cp_async_wait<0>();
    __syncthreads();
    if (k0 + BK < k) copy(k0 + BK, buffer ^ 1);

#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
      Vector fa[TM / 4], fb[TN / 4];
#pragma unroll
      for (int i = 0; i < TM / 4; ++i) fa[i] = *reinterpret_cast<const Vector*>(&a[buffer][kk][row + i * 16]);
#pragma unroll
      for (int j = 0; j < TN / 4; ++j) fb[j] = *reinterpret_cast<const Vector*>(&b[buffer][kk][column + j * 32]);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += fa[i / 4].x[i % 4] * fb[j / 4].x[j % 4];
    }
  }

#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN / 4; ++j) {
      const size_t at = (row0 + row + i / 4 * 16 + i % 4) * n + column0 + column + j * 32;
      Vector* const c = reinterpret_cast<Vector*>(&C[at]);
      Vector out, old = {};
      if (beta != 0.0f) old = *c;  // beta = 0 must not read C: it may hold NaN
#pragma unroll
      for (int v = 0; v < 4; ++v) out.x[v] = alpha * acc[i][j * 4 + v] + beta * old.x[v];
      *c = out;
    }
  }
}
