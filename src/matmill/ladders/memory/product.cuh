// The tiled product that all transfer rungs time: T x T threads, one element of C per thread, any shape.
//
//   global A[row][s + x] ──▶ shared As[y][x] ──▶ (one word per row of the tile) ──┐
//   global B[s + y][column] ──▶ shared Bs[y][x] ──▶ (adjacent words) ─────────────┴──▶ acc ──▶ global C
//
//   per step: load both tiles │ barrier: tiles complete │ T FMAs │ barrier: tiles may be overwritten
//
// Tiles that extend beyond A or B are filled with zeros, so every thread reaches every barrier.
// The transfer's cost depends on memory that is first read here: nothing if it was copied before, a page migration if
// it is managed memory.
extern "C" __global__ void __launch_bounds__(Config::T* Config::T)
    product(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
            float alpha, float beta) {
  constexpr int T = Config::T;
  __shared__ float As[T][T];
  __shared__ float Bs[T][T];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int row = blockIdx.y * T + y;
  const int column = blockIdx.x * T + x;

  float acc = 0.0f;
  for (int s = 0; s < k; s += T) {
    As[y][x] = row < m && x < k - s ? A[size_t(row) * k + s + x] : 0.0f;
    Bs[y][x] = column < n && y < k - s ? B[size_t(s + y) * n + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T; ++i) acc += As[y][i] * Bs[i][x];
    __syncthreads();
  }
  if (row >= m || column >= n) return;

  float* c = &C[size_t(row) * n + column];
  *c = beta == 0.0f ? alpha * acc : alpha * acc + beta * *c;  // beta = 0 must not read C: it may hold NaN
}
