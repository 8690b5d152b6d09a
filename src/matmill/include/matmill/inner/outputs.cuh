// What stands before and after the long sum of D = alpha * E * F + beta * C: two entry points for all rungs.
//
//   clear  ─▶ sums = 0 ─▶ (a kernel adds atomically) ─▶ finish with count = 1
//                         (a kernel writes partials) ─▶ finish with count = blocks
//
// Sums lie output by output, `count` partial sums of one output side by side.
#pragma once

#include "matmill/dtype/number.cuh"

// Offsets and k: E may hold more than 2^31 elements.
using Index = long long;
using Number = matmill::NumberOf<Scalar>;
using Acc = Number::Acc;

extern "C" __global__ void clear(Acc* __restrict__ sums, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sums[i] = 0;
}

// One warp per output adds its partial sums, always in the same order: lane by lane in steps of 32, then a tree over the
// lanes. C and D may be the same memory. Where `mirrored`, only the partial sums on and above the diagonal are there.
extern "C" __global__ void __launch_bounds__(128)
    finish(const Acc* __restrict__ sums, int count, const Scalar* C, Index c_row, Index c_column, Scalar* D,
           Index d_row, Index d_column, int m, int n, Acc alpha, Acc beta, int mirrored) {
  const int output = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (output >= m * n) return;  // a whole warp at a time
  const int row = output / n;
  const int column = output % n;
  const int from = mirrored && row > column ? column * n + row : output;

  Acc sum = 0;
  for (int i = lane; i < count; i += 32) sum += sums[Index(from) * count + i];
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);

  if (lane == 0) {
    Acc d = alpha * sum;
    if (beta != 0) d += beta * Number::up(C[row * c_row + column * c_column]);  // else C may hold NaN
    D[row * d_row + column * d_column] = Number::down(d);
  }
}
