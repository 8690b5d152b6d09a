// MULTI adjacent elements of one row of C per thread, accumulated in global memory.
//
//   global A[row][i] (one word for the whole warp) ──────────────┐
//   global B[i][first + j] (32 words, MULTI apart) ──────────────┼──▶ global C[row][first + j], read and written
//   global C[row][first + j] (32 words, MULTI apart) ────────────┘    at every step i
//
// Block: TX x TY threads for a TY x (TX * MULTI) tile of C. Per step a warp makes one 1-sector request for A and, for
// each j, a load of B, a load of C and a store of C that touch 4 * MULTI sectors each (MULTI <= 8). All words of these
// sectors are used, but by MULTI different instructions.
extern "C" __global__ void __launch_bounds__(Config::TX* Config::TY)
    multi(const float* __restrict__ A, const float* __restrict__ B, float* C, int m, int n, int k, float alpha,
          float beta) {
  constexpr int MULTI = Config::MULTI;
  const int row = blockIdx.y * Config::TY + threadIdx.y;
  const int first = (blockIdx.x * Config::TX + threadIdx.x) * MULTI;
  if (row >= m || first >= n) return;
  const int outputs = min(MULTI, n - first);

  // volatile, because a compiler keeps sums in registers, and then there is nothing to measure. Omitting __restrict__
  // is not enough: at MULTI = 1 the stored value is forwarded and the load of C disappears.
  volatile float* c = &C[size_t(row) * n + first];
  float old[MULTI];
#pragma unroll
  for (int j = 0; j < MULTI; ++j) {
    if (j < outputs) {
      old[j] = beta == 0.0f ? 0.0f : beta * c[j];  // beta = 0 must not read C: it may hold NaN
      c[j] = 0.0f;
    }
  }

  for (int i = 0; i < k; ++i) {
    const float a = A[size_t(row) * k + i];
    const float* b = &B[size_t(i) * n + first];
#pragma unroll
    for (int j = 0; j < MULTI; ++j) {
      if (j < outputs) c[j] = c[j] + a * b[j];
    }
  }

#pragma unroll
  for (int j = 0; j < MULTI; ++j) {
    if (j < outputs) c[j] = alpha * c[j] + old[j];
  }
}
