// G adjacent B x B tiles of C per block: one tile of A serves G tiles of B (Kirk & Hwu's "thread granularity").
//
//   global A ──▶ shared As[B][B] ──────▶ a, read once per step i ──┐
//   global B ──▶ shared Bs[G][B][B] ──▶ G words ───────────────────┴──▶ acc[G] ──▶ global C
//
//   per step: load 1 + G tiles │ barrier: tiles complete │ B * G FMAs │ barrier: tiles may be overwritten
//
// Thread (x, y) of B x B owns C[y][x + B * g] of the block's B x (B * G) tile, so global accesses are as wide as for
// one tile. A warp reads two rows of As, 16 words apart, and 16 adjacent words of Bs: no conflicts.
extern "C" __global__ void __launch_bounds__(Config::B* Config::B)
    granularity(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
                float alpha, float beta) {
  constexpr int T = Config::B;
  constexpr int G = Config::G;
  __shared__ __align__(16) float As[T][T];
  __shared__ __align__(16) float Bs[G][T][T];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int row = blockIdx.y * T + y;
  const int column = blockIdx.x * T * G + x;

  float acc[G] = {};
  for (int s = 0; s < k; s += T) {
    As[y][x] = A[size_t(row) * k + s + x];
#pragma unroll
    for (int g = 0; g < G; ++g) Bs[g][y][x] = B[size_t(s + y) * n + column + T * g];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T; ++i) {
      const float a = As[y][i];
#pragma unroll
      for (int g = 0; g < G; ++g) acc[g] += a * Bs[g][i][x];
    }
    __syncthreads();
  }

#pragma unroll
  for (int g = 0; g < G; ++g) {
    float* c = &C[size_t(row) * n + column + T * g];
    *c = beta == 0.0f ? alpha * acc[g] : alpha * acc[g] + beta * *c;  // beta = 0 must not read C: it may hold NaN
  }
}
