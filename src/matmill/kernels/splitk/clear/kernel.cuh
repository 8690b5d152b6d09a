// Zeroes sums before a kernel that adds to them atomically.
#include "matmill/dtype/epilogue.cuh"

extern "C" __global__ void __launch_bounds__(Config::THREADS) clear(const __grid_constant__ Args args) {
  const int i = blockIdx.x * Config::THREADS + threadIdx.x;
  if (i < args.count) args.workspace[i] = 0;
}
