// One row x BN columns of C per thread, in registers; only B goes through shared memory (Volkov & Demmel, "Benchmarking
// GPUs to tune dense linear algebra", SC 2008).
//
//   global A[row][s + i] (a different row for every lane) ──▶ a ──────────┐
//   global B ──▶ shared Bs[BK][BN + 1] ──▶ one word for the whole block ──┴──▶ acc[BN] ──▶ global C
//
//   per step: load B's tile │ barrier: tile complete │ BK * BN FMAs │ barrier: tile may be overwritten
//
// Block: TX x TY = 64 x 4 threads for a 256 x 64 tile of C; k advances by 64. A request for A touches 32 sectors, one
// per row. The next seven steps hit the same sectors as long as L1 holds them (256 rows x 32 bytes). Reads of Bs are
// one word per warp. With row-major A the padding of Bs' rows has no use, since no two lanes ever read different words.
// It also keeps the compiler from reading four columns at once: every FMA pays one shared read. C is written a word per
// row at a time, 32 sectors per request, but only once.
extern "C" __global__ void __launch_bounds__(Config::TX* Config::TY)
    volkov(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
           float alpha, float beta) {
  constexpr int BN = Config::BN;
  constexpr int BK = Config::BK;
  constexpr int THREADS = Config::TX * Config::TY;
  static_assert(THREADS == Config::BM, "one thread per row of the tile");
  static_assert(THREADS % BN == 0 && BK % (THREADS / BN) == 0, "whole rows of B's tile per pass");
  __shared__ float Bs[BK][BN + 1];
  const int thread = threadIdx.y * Config::TX + threadIdx.x;
  const int row = blockIdx.y * Config::BM + thread;
  const int column = blockIdx.x * BN;
  const float* a_row = &A[size_t(row) * k];

  float acc[BN] = {};
  for (int s = 0; s < k; s += BK) {
#pragma unroll
    for (int r = 0; r < BK; r += THREADS / BN) {
      const int i = r + thread / BN;
      Bs[i][thread % BN] = B[size_t(s + i) * n + column + thread % BN];
    }
    __syncthreads();
    for (int i = 0; i < BK; ++i) {
      const float a = a_row[s + i];
#pragma unroll
      for (int j = 0; j < BN; ++j) acc[j] += a * Bs[i][j];
    }
    __syncthreads();
  }

  float* c = &C[size_t(row) * n + column];
#pragma unroll
  for (int j = 0; j < BN; ++j)
    c[j] = beta == 0.0f ? alpha * acc[j] : alpha * acc[j] + beta * c[j];  // beta = 0 must not read C: it may hold NaN
}
