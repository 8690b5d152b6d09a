// Split-K reduction as a kernel of its own: one or several threads add an output's partial sums in a fixed order.
//
// Partial sums are stored [slice][output], so blocks write and read whole sectors. The number of threads per output
// depends on the number of outputs: with many outputs, blocks with few threads per output are all resident at once.
#pragma once

#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// A block that reduces OUTPUTS outputs with WAYS threads each.
template <int OUTPUTS, int WAYS>
struct SliceSum {
  static constexpr int THREADS = OUTPUTS * WAYS;
  static constexpr int IN_FLIGHT = 16;  // a thread's loads: 16 of them wait for L2 once

  // This thread's output, and whether this thread writes it.
  static __device__ __forceinline__ int own_output() { return blockIdx.x * OUTPUTS + threadIdx.x % OUTPUTS; }
  static __device__ __forceinline__ bool writes(int outputs) { return threadIdx.x < OUTPUTS && own_output() < outputs; }

  // The sum of an output's `count` partial sums, in a fixed order: way w adds w, w + WAYS, …, then way 0 adds the ways
  // in order. Every thread of the block calls it; threads of way 0 get the result.
  static __device__ __forceinline__ Acc sum(const Acc* sums, int count, int outputs, int output) {
    const int lane = threadIdx.x % OUTPUTS, way = threadIdx.x / OUTPUTS;
    Acc sum = 0;
    if (output < outputs) {
      for (int first = way; first < count; first += WAYS * IN_FLIGHT) {
        Acc loaded[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
          const int i = first + u * WAYS;
          if (i < count) loaded[u] = sums[Index(i) * outputs + output];
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; ++u) {
          if (first + u * WAYS < count) sum += loaded[u];
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
