// GRAIN rows of C per thread: fewer threads, each with GRAIN independent sums (Volkov, "Better performance at lower
// occupancy", GTC 2010).
//
//   global A ──▶ shared As[B][B] ──▶ GRAIN words, H rows apart ──┐
//   global B ──▶ shared Bs[B][B] ──▶ b, read once per step i ────┴──▶ acc[GRAIN] ──▶ global C
//
//   per step: load both tiles │ barrier: tiles complete │ B * GRAIN FMAs │ barrier: tiles may be overwritten
//
// Block: B x H threads with H = B / GRAIN; thread (x, y) owns rows y, y + H, y + 2H, … of the B x B tile, so that at
// every access a warp still covers 32 adjacent columns of one row. Reads of As are one word per warp, reads of Bs
// 32 adjacent words: no conflicts.
//
// The launch bound of one block per SM keeps the assembler from spilling for occupancy. Without it GRAIN = 16 spilled
// 36 bytes (sm_100a, NVRTC 13.5, 2026-11-20).
extern "C" __global__ void __launch_bounds__(Config::B* Config::B / Config::GRAIN, 1)
    ilp(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
        float alpha, float beta) {
  constexpr int T = Config::B;
  constexpr int GRAIN = Config::GRAIN;
  constexpr int H = T / GRAIN;
  __shared__ __align__(16) float As[T][T];
  __shared__ __align__(16) float Bs[T][T];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int row = blockIdx.y * T + y;
  const int column = blockIdx.x * T + x;

  float acc[GRAIN] = {};
  for (int s = 0; s < k; s += T) {
#pragma unroll
    for (int g = 0; g < GRAIN; ++g) {
      As[y + H * g][x] = A[size_t(row + H * g) * k + s + x];
      Bs[y + H * g][x] = B[size_t(s + y + H * g) * n + column];
    }
    __syncthreads();
    // Unrolled by four: the compiler reads four words of As at once. More only costs registers.
#pragma unroll 4
    for (int i = 0; i < T; ++i) {
      const float b = Bs[i][x];
#pragma unroll
      for (int g = 0; g < GRAIN; ++g) acc[g] += As[y + H * g][i] * b;
    }
    __syncthreads();
  }

#pragma unroll
  for (int g = 0; g < GRAIN; ++g) {
    float* c = &C[size_t(row + H * g) * n + column];
    *c = beta == 0.0f ? alpha * acc[g] : alpha * acc[g] + beta * *c;  // beta = 0 must not read C: it may hold NaN
  }
}
