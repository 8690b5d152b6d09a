// One thread per element of C; a warp covers 32 adjacent rows of one column.
//
//   global A[row][k] (32 words, k elements apart) ─────────┐
//   global B[k][column] (one word for the whole warp) ─────┴──▶ acc ──▶ global C (32 words, n elements apart)
//
// Per FMA: one 32-sector request for A, one 1-sector request for B. Only threadIdx.x and .y are other than in naive.
extern "C" __global__ void __launch_bounds__(Config::BM* Config::BN)
    uncoalesced(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
                float alpha, float beta) {
  const int row = blockIdx.y * Config::BM + threadIdx.x;
  const int column = blockIdx.x * Config::BN + threadIdx.y;
  if (row >= m || column >= n) return;

  float acc = 0.0f;
  for (int i = 0; i < k; ++i) acc += A[size_t(row) * k + i] * B[size_t(i) * n + column];

  float* c = &C[size_t(row) * n + column];
  *c = beta == 0.0f ? alpha * acc : alpha * acc + beta * *c;  // beta = 0 must not read C: it may hold NaN
}
