// What stands before and after the long sum of D = alpha * E * F + beta * C: entry points for every kernel of this kind.
//
//   clear  ─▶ sums = 0 ─▶ (a kernel adds atomically) ─▶ finish with count = 1
//                         (a kernel writes partials) ─▶ finish with count = blocks
//                         (a kernel writes partials) ─▶ carry, for each piece of a long k ─▶ finish with count = 1
//
// Partial sums lie block by block, the outputs of a block side by side: blocks write, and this reads, whole sectors.
//
// finish and join are launched early: on their multiprocessors already, they wait for the sums to be there. So nothing
// may say that the sums do not change while they run, as __restrict__ would.
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

constexpr int FINISH_OUTPUTS = 32;  // outputs of one block of `finish` and `carry`
constexpr int FINISH_WAYS = 16;     // threads that share the partial sums of one output
constexpr int FINISH_THREADS = FINISH_OUTPUTS * FINISH_WAYS;
constexpr int FINISH_AT_ONCE = 16;  // loads of a thread under way: those of 256 partial sums wait for L2 once
constexpr int JOIN_THREADS = 256;  // of a block of `join`, an output each

// The sum of an output's `count` partial sums, always added in the same order: way by way in steps of FINISH_WAYS, then
// the ways in turn. Every thread of the block calls it; those of way 0 get the sum of the output that they name.
__device__ __forceinline__ Acc added(const Acc* sums, int count, int outputs, int output) {
  __shared__ Acc ways[FINISH_WAYS][FINISH_OUTPUTS];
  const int lane = threadIdx.x % FINISH_OUTPUTS, way = threadIdx.x / FINISH_OUTPUTS;
  Acc sum = 0;
  if (output < outputs) {
    for (int first = way; first < count; first += FINISH_WAYS * FINISH_AT_ONCE) {
      Acc some[FINISH_AT_ONCE];
#pragma unroll
      for (int u = 0; u < FINISH_AT_ONCE; ++u) {
        const int i = first + u * FINISH_WAYS;
        if (i < count) some[u] = sums[Index(i) * outputs + output];
      }
#pragma unroll
      for (int u = 0; u < FINISH_AT_ONCE; ++u) {
        if (first + u * FINISH_WAYS < count) sum += some[u];
      }
    }
  }
  ways[way][lane] = sum;
  __syncthreads();
  if (way == 0) {
#pragma unroll
    for (int other = 1; other < FINISH_WAYS; ++other) sum += ways[other][lane];
  }
  return sum;
}

// The output that this thread works on, and whether it is the one to write it.
__device__ __forceinline__ int own_output() { return blockIdx.x * FINISH_OUTPUTS + threadIdx.x % FINISH_OUTPUTS; }
__device__ __forceinline__ bool writes(int outputs) {
  return threadIdx.x < FINISH_OUTPUTS && own_output() < outputs;
}

// One output: a scaled product and beta times an element of C. `given()` reads that, and is not called for a beta of 0:
// it may be NaN then, or not exist.
template <class Given>
__device__ __forceinline__ Scalar output_of(Acc alpha, Acc sum, Acc beta, Given given) {
  Acc d = alpha * sum;
  if (beta != 0) d += beta * Number::up(given());
  return Number::down(d);
}

}  // namespace matmill

extern "C" __global__ void clear(Acc* __restrict__ sums, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sums[i] = 0;
}

// C and D may be the same memory. Where `mirrored`, only the partial sums on and above the diagonal are there.
// blockIdx.y counts the products of a batch.
extern "C" __global__ void __launch_bounds__(matmill::FINISH_THREADS)
    finish(const Acc* sums, int count, const Scalar* C, Index c_row, Index c_column, Index c_batch, Scalar* D,
           Index d_row, Index d_column, Index d_batch, int m, int n, Acc alpha, Acc beta, int mirrored) {
  matmill::ptx::begin();
  const int outputs = m * n, output = matmill::own_output();
  const int row = output / n, column = output % n;
  const int from = mirrored && row > column ? column * n + row : output;
  const Index batch = blockIdx.y;

  const Acc sum = matmill::added(sums + batch * count * outputs, count, outputs, from);
  if (matmill::writes(outputs)) {
    const auto given = [&] { return C[batch * c_batch + row * c_row + column * c_column]; };
    D[batch * d_batch + row * d_row + column * d_column] = matmill::output_of(alpha, sum, beta, given);
  }
}

// What finish does, for many outputs and few partial sums of each: a thread to an output, without shared memory.
extern "C" __global__ void __launch_bounds__(matmill::JOIN_THREADS)
    join(const Acc* sums, int count, const Scalar* C, Index c_row, Index c_column, Index c_batch, Scalar* D,
         Index d_row, Index d_column, Index d_batch, int m, int n, Acc alpha, Acc beta) {
  matmill::ptx::begin();
  const int outputs = m * n, output = blockIdx.x * matmill::JOIN_THREADS + threadIdx.x;
  if (output >= outputs) return;
  const int row = output / n, column = output - row * n;
  const Index batch = blockIdx.y;
  const Acc* const own = sums + batch * count * outputs + output;
  Acc sum = own[0];
#pragma unroll 4
  for (int i = 1; i < count; ++i) sum += own[Index(i) * outputs];
  const auto given = [&] { return C[batch * c_batch + row * c_row + column * c_column]; };
  D[batch * d_batch + row * d_row + column * d_column] = matmill::output_of(alpha, sum, beta, given);
}

// total += the partial sums of one piece of k.
extern "C" __global__ void __launch_bounds__(matmill::FINISH_THREADS)
    carry(const Acc* __restrict__ sums, int count, Acc* __restrict__ total, int outputs) {
  const int output = matmill::own_output();
  const Acc sum = matmill::added(sums, count, outputs, output);
  if (matmill::writes(outputs)) total[output] += sum;
}
