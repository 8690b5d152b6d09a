// What stands before and after the long sum of D = alpha * E * F + beta * C: entry points for every kernel of this kind.
//
//   clear  ─▶ sums = 0 ─▶ (a kernel adds atomically) ─▶ finish with count = 1
//                         (a kernel writes partials) ─▶ finish with count = blocks
//                         (a kernel writes partials) ─▶ carry, for each piece of a long k ─▶ finish with count = 1
//
// Partial sums lie block by block, the outputs of a block side by side: blocks write, and this reads, whole sectors.
//
// finish, share and join are launched early: on their multiprocessors already, they wait for the sums to be there. So
// nothing may say that the sums do not change while they run, as __restrict__ would. They differ in how many threads
// share the sums of an output: where there are many outputs, blocks of few threads are all on their multiprocessors.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/ptx/order.cuh"

// Offsets and k: E may hold more than 2^31 elements.
using Index = long long;
using Number = matmill::NumberOf<Scalar>;
using Acc = Number::Acc;

namespace matmill {

// One operand: where it lies, and its strides in elements.
struct Matrix {
  const Scalar* first;
  Index line_stride, k_stride;
};

constexpr int AT_ONCE = 16;  // loads of a thread under way: those of 16 partial sums wait for L2 once

// A block that adds the partial sums of OUTPUTS outputs, in WAYS threads each.
template <int OUTPUTS, int WAYS>
struct Adding {
  static constexpr int THREADS = OUTPUTS * WAYS;

  // The output that this thread works on, and whether it is the one to write it.
  static __device__ __forceinline__ int own() { return blockIdx.x * OUTPUTS + threadIdx.x % OUTPUTS; }
  static __device__ __forceinline__ bool writes(int outputs) { return threadIdx.x < OUTPUTS && own() < outputs; }

  // The sum of an output's `count` partial sums, always added in the same order: way by way in steps of WAYS, then the
  // ways in turn. Every thread of the block calls it; those of way 0 get the sum of the output that they name.
  static __device__ __forceinline__ Acc sum(const Acc* sums, int count, int outputs, int output) {
    const int lane = threadIdx.x % OUTPUTS, way = threadIdx.x / OUTPUTS;
    Acc sum = 0;
    if (output < outputs) {
      for (int first = way; first < count; first += WAYS * AT_ONCE) {
        Acc some[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
          const int i = first + u * WAYS;
          if (i < count) some[u] = sums[Index(i) * outputs + output];
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u) {
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
// Of few outputs with many partial sums each, of more with some, and of many with few.
using Finish = Adding<32, 16>;
using Share = Adding<64, 4>;
using Join = Adding<256, 1>;

// One output: a scaled product and beta times an element of C. `given()` reads that, and is not called for a beta of 0:
// it may be NaN then, or not exist.
template <class Given>
__device__ __forceinline__ Scalar output_of(Acc alpha, Acc sum, Acc beta, Given given) {
  Acc d = alpha * sum;
  if (beta != 0) d += beta * Number::up(given());
  return Number::down(d);
}

// D of `count` partial sums per output. Where `mirrored`, only those on and above the diagonal are there. C and D may be
// the same memory. blockIdx.y counts the products of a batch.
template <class Adding>
__device__ __forceinline__ void make_outputs(const Acc* sums, int count, const Scalar* C, Index c_row, Index c_column,
                                             Index c_batch, Scalar* D, Index d_row, Index d_column, Index d_batch,
                                             int m, int n, Acc alpha, Acc beta, bool mirrored = false) {
  ptx::begin();
  const int outputs = m * n, output = Adding::own();
  const int row = output / n, column = output - row * n;
  const int from = mirrored && row > column ? column * n + row : output;
  const Index batch = blockIdx.y;

  const Acc sum = Adding::sum(sums + batch * count * outputs, count, outputs, from);
  if (Adding::writes(outputs)) {
    const auto given = [&] { return C[batch * c_batch + row * c_row + column * c_column]; };
    D[batch * d_batch + row * d_row + column * d_column] = output_of(alpha, sum, beta, given);
  }
}

}  // namespace matmill

extern "C" __global__ void clear(Acc* __restrict__ sums, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sums[i] = 0;
}

extern "C" __global__ void __launch_bounds__(matmill::Finish::THREADS)
    finish(const Acc* sums, int count, const Scalar* C, Index c_row, Index c_column, Index c_batch, Scalar* D,
           Index d_row, Index d_column, Index d_batch, int m, int n, Acc alpha, Acc beta, int mirrored) {
  matmill::make_outputs<matmill::Finish>(sums, count, C, c_row, c_column, c_batch, D, d_row, d_column, d_batch, m, n,
                                         alpha, beta, mirrored != 0);
}

// What finish does, for more outputs and fewer partial sums of each.
extern "C" __global__ void __launch_bounds__(matmill::Share::THREADS)
    share(const Acc* sums, int count, const Scalar* C, Index c_row, Index c_column, Index c_batch, Scalar* D,
          Index d_row, Index d_column, Index d_batch, int m, int n, Acc alpha, Acc beta) {
  matmill::make_outputs<matmill::Share>(sums, count, C, c_row, c_column, c_batch, D, d_row, d_column, d_batch, m, n,
                                        alpha, beta);
}
extern "C" __global__ void __launch_bounds__(matmill::Join::THREADS)
    join(const Acc* sums, int count, const Scalar* C, Index c_row, Index c_column, Index c_batch, Scalar* D,
         Index d_row, Index d_column, Index d_batch, int m, int n, Acc alpha, Acc beta) {
  matmill::make_outputs<matmill::Join>(sums, count, C, c_row, c_column, c_batch, D, d_row, d_column, d_batch, m, n,
                                       alpha, beta);
}

// total += the partial sums of one piece of k.
extern "C" __global__ void __launch_bounds__(matmill::Finish::THREADS)
    carry(const Acc* __restrict__ sums, int count, Acc* __restrict__ total, int outputs) {
  const int output = matmill::Finish::own();
  const Acc sum = matmill::Finish::sum(sums, count, outputs, output);
  if (matmill::Finish::writes(outputs)) total[output] += sum;
}
