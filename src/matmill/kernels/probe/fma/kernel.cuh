// FMA throughput of the GPU, with nothing but arithmetic.
//
//   fma_chains  CHAINS chains per thread, x[i] = x[i] * a + b: every instruction shares two of three operands
//   fma_outer   TM x TN sums per thread, acc[i][j] += a[i] * b[j], as in a product's inner loop: operands differ
//
// LENGTH rounds of these per trip. The host compiles two lengths and divides the difference of FMAs by the difference
// of times: the loop's own instructions, launch and last blocks cancel.
//
// values: 32 of a and 32 of b, one per lane: a value that all lanes share would be in a uniform register, which is
// another instruction. fma() is explicit: a * b alone is loop-invariant, and the compiler would hoist it.

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    fma_chains(const Scalar* values, Scalar* result, int trips) {
  const Scalar a = values[threadIdx.x % 32];
  const Scalar b = values[32 + threadIdx.x % 32];
  Scalar x[Config::CHAINS];
#pragma unroll
  for (int i = 0; i < Config::CHAINS; ++i) x[i] = Scalar(threadIdx.x % 32 + i);
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int round = 0; round < Config::LENGTH; ++round) {
#pragma unroll
      for (int i = 0; i < Config::CHAINS; ++i) x[i] = fma(x[i], a, b);
    }
  }
  Scalar sum = 0;
#pragma unroll
  for (int i = 0; i < Config::CHAINS; ++i) sum += x[i];
  result[blockIdx.x * Config::THREADS + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    fma_outer(const Scalar* values, Scalar* result, int trips) {
  constexpr int TM = Config::TM;
  constexpr int TN = Config::TN;
  const Scalar a = values[threadIdx.x % 32];
  const Scalar b = values[32 + threadIdx.x % 32];
  Scalar row[TM];
  Scalar column[TN];
  Scalar acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; ++i) row[i] = a * Scalar(threadIdx.x % 32 + i);
#pragma unroll
  for (int j = 0; j < TN; ++j) column[j] = b * Scalar(threadIdx.x % 4 + j);
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i][j] = 0;
  }
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int round = 0; round < Config::LENGTH; ++round) {
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] = fma(row[i], column[j], acc[i][j]);
      }
    }
  }
  Scalar sum = 0;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; ++j) sum += acc[i][j];
  }
  result[blockIdx.x * Config::THREADS + threadIdx.x] = sum;
}
