// B x B threads, one element of C per thread, B x B tiles of both inputs staged in shared memory.
//
//   global A[row][s + x] ──▶ shared As[y][x] ──▶ (one word per row of the tile) ──┐
//   global B[s + y][column] ──▶ shared Bs[y][x] ──▶ (adjacent words) ─────────────┴──▶ acc ──▶ global C
//
//   per step: load both tiles │ barrier: tiles complete │ B FMAs │ barrier: tiles may be overwritten
//
// Every word of a tile is read from global memory once and used B times. Shared accesses are free of conflicts: a warp
// reads 32 / B rows of As, whose words, B apart, are in different banks, and a run of adjacent words of Bs.
extern "C" __global__ void __launch_bounds__(Config::B* Config::B)
    shared(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
           float alpha, float beta) {
  constexpr int T = Config::B;
  __shared__ __align__(16) float As[T][T];
  __shared__ __align__(16) float Bs[T][T];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int row = blockIdx.y * T + y;
  const int column = blockIdx.x * T + x;

  float acc = 0.0f;
  for (int s = 0; s < k; s += T) {
    As[y][x] = A[size_t(row) * k + s + x];
    Bs[y][x] = B[size_t(s + y) * n + column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T; ++i) acc += As[y][i] * Bs[i][x];
    __syncthreads();
  }

  float* c = &C[size_t(row) * n + column];
  *c = beta == 0.0f ? alpha * acc : alpha * acc + beta * *c;  // beta = 0 must not read C: it may hold NaN
}
