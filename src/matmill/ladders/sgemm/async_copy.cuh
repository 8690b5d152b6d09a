// As `vectorized`, with cp.async: copies overlap the arithmetic.
//
//   step t   all threads: wait for this thread's copies of tile t; barrier; start copying tile t+1 into the other
//            buffer; compute tile t
//
// The one barrier per step publishes tile t. It also proves that all threads have finished tile t-1, whose buffer the
// next copies overwrite.
#include "matmill/ptx/cp_async.cuh"

struct alignas(16) Vector {
  float x[4];
};

extern "C" __global__ void __launch_bounds__(256)
    async_copy(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
               float alpha, float beta) {
  constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, TM = Config::TM, TN = Config::TN;
  // Four words of padding: the 8 k x 4 rows that a warp copies are in 32 different banks.
  __shared__ __align__(16) float a[2][BK][BM + 4];
  __shared__ __align__(16) float b[2][BK][BN];

  const int thread = threadIdx.y * 16 + threadIdx.x;
  const int a_k = thread % 8, a_row = thread / 8;           // the first word of the A tile to copy; others 32 rows apart
  const int b_k = thread / 32, b_column = thread % 32 * 4;  // this thread's vector of the B tile
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  auto copy = [&](int k0, int buffer) {
#pragma unroll
    for (int i = 0; i < BM; i += 32) {
      matmill::ptx::cp_async_zfill<4>(matmill::ptx::shared_address(&a[buffer][a_k][a_row + i]),
                                        &A[(row0 + a_row + i) * k + k0 + a_k], true);
    }
    matmill::ptx::cp_async_zfill<16>(matmill::ptx::shared_address(&b[buffer][b_k][b_column]),
                                       &B[size_t(k0 + b_k) * n + column0 + b_column], true);
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
      Vector fa[2], fb[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        fa[half] = *reinterpret_cast<const Vector*>(&a[buffer][kk][half * BM / 2 + threadIdx.y * 4]);
        fb[half] = *reinterpret_cast<const Vector*>(&b[buffer][kk][half * BN / 2 + threadIdx.x * 4]);
      }
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += fa[i / 4].x[i % 4] * fb[j / 4].x[j % 4];
    }
  }

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const size_t row = row0 + i / 4 * (BM / 2) + threadIdx.y * 4 + i % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vector* const c = reinterpret_cast<Vector*>(&C[row * n + column0 + half * (BN / 2) + threadIdx.x * 4]);
      Vector out, old = {};
      if (beta != 0.0f) old = *c;  // beta = 0 must not read C: it may hold NaN
#pragma unroll
      for (int j = 0; j < 4; ++j) out.x[j] = alpha * acc[i][half * 4 + j] + beta * old.x[j];
      *c = out;
    }
  }
}
