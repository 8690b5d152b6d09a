// The partial sums of an output, added by one or several threads in a fixed order.
//
// Partial sums are stored [slice][output]: blocks write, and this reads, whole sectors. How many threads share an output
// depends on how many outputs there are: with many, blocks of few threads per output are all resident at once.
#pragma once

#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// A block that adds the partial sums of OUTPUTS outputs, by WAYS threads each.
template <int OUTPUTS, int WAYS>
struct SliceSum {
  static constexpr int THREADS = OUTPUTS * WAYS;
  static constexpr int IN_FLIGHT = 16;  // loads of a thread: those of 16 partial sums wait for L2 once

  // The output that this thread works on, and whether it is the one to write it.
  static __device__ __forceinline__ int own() { return blockIdx.x * OUTPUTS + threadIdx.x % OUTPUTS; }
  static __device__ __forceinline__ bool writes(int outputs) { return threadIdx.x < OUTPUTS && own() < outputs; }

  // The sum of an output's `count` partial sums, always added in the same order: each way in steps of WAYS, then the
  // ways one after another. Every thread of the block calls it; those of way 0 get the sum of the output that they name.
  static __device__ __forceinline__ Acc sum(const Acc* sums, int count, int outputs, int output) {
    const int lane = threadIdx.x % OUTPUTS, way = threadIdx.x / OUTPUTS;
    Acc sum = 0;
    if (output < outputs) {
      for (int first = way; first < count; first += WAYS * IN_FLIGHT) {
        Acc some[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
          const int i = first + u * WAYS;
          if (i < count) some[u] = sums[Index(i) * outputs + output];
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
          if (first + u * WAYS < count) sum += some[u];
        }
      }
    }
    if constexpr (WAYS > 1) {
      __shared__ Acc ways[WAYS][OUTPUTS];
      ways[way][lane] = sum;
      __syncthreads();
      if (way == 0) {
#pragma unroll
        for (int other = 1; other < WAYS; ++other) sum += ways[other][lane];
      }
    }
    return sum;
  }
};

}  // namespace matmill
