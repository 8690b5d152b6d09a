// Zeroes sums before a kernel that adds to them atomically.
#include "matmill/dtype/epilogue.cuh"

extern "C" __global__ void __launch_bounds__(Config::THREADS) clear(PARAMETERS) {
  const int i = blockIdx.x * Config::THREADS + threadIdx.x;
  if (i < count) workspace[i] = 0;
}
