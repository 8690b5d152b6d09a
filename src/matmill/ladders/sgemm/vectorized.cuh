// C tile 128x128 per block, 16x16 threads, 8x8 outputs per thread as four 4x4 corners, k-step 8.
//
//   global ── 16-byte loads ──▶ registers ──▶ shared a[BK][BM] (transposed), b[BK][BN]
//          ── 16-byte reads ──▶ registers a[8], b[8] ──▶ acc[8][8] ── 16-byte stores ──▶ global C
//
// The four words that a thread transposes go to four rows of `a`. Four words of padding put the two halves of a warp
// 16 banks apart: no conflicts. A warp reads 2 distinct vectors of A and 16 of B per step.
struct alignas(16) Vector {
  float x[4];
};

extern "C" __global__ void __launch_bounds__(256)
    vectorized(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
               float alpha, float beta) {
  constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, TM = Config::TM, TN = Config::TN;
  __shared__ __align__(16) float a[BK][BM + 4];
  __shared__ __align__(16) float b[BK][BN];

  const int thread = threadIdx.y * 16 + threadIdx.x;
  const int a_row = thread / 2, a_k = thread % 2 * 4;    // this thread's vector of the A tile
  const int b_k = thread / 32, b_column = thread % 32 * 4;  // … and of the B tile
  const size_t row0 = size_t(blockIdx.y) * BM, column0 = size_t(blockIdx.x) * BN;

  float acc[TM][TN] = {};
  for (int k0 = 0; k0 < k; k0 += BK) {
    const Vector from_a = *reinterpret_cast<const Vector*>(&A[(row0 + a_row) * k + k0 + a_k]);
    const Vector from_b = *reinterpret_cast<const Vector*>(&B[size_t(k0 + b_k) * n + column0 + b_column]);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[a_k + i][a_row] = from_a.x[i];
    *reinterpret_cast<Vector*>(&b[b_k][b_column]) = from_b;
    __syncthreads();

#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
      Vector fa[2], fb[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        fa[half] = *reinterpret_cast<const Vector*>(&a[kk][half * BM / 2 + threadIdx.y * 4]);
        fb[half] = *reinterpret_cast<const Vector*>(&b[kk][half * BN / 2 + threadIdx.x * 4]);
      }
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += fa[i / 4].x[i % 4] * fb[j / 4].x[j % 4];
    }
    __syncthreads();  // the next step overwrites both tiles
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
