// How many values of each block fall into each of BINS bins; `beyond` says whether a value falls into none.
#include <cuda_runtime.h>

#include "check.h"

#ifndef BINS
#define BINS 64
#endif

namespace stats {

__global__ void histogram(const unsigned* __restrict__ values, int n, unsigned* counts, int* beyond) {
  __shared__ unsigned bins[BINS];
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) bins[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const unsigned v = values[i];
    if (v < BINS) {
      atomicAdd(&bins[v], 1);
    } else {
      *beyond = 1;
    }
  }
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&counts[b], bins[b]);
}

}  // namespace stats

void count(const unsigned* values, int n, unsigned* counts, int* beyond, cudaStream_t stream) {
  stats::histogram<<<blocks_for(n, 256), 256, 0, stream>>>(values, n, counts, beyond);
  CHECK(cudaGetLastError());
}
