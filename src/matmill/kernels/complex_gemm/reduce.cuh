// D = alpha * (the sum of each output's `slices` partial sums) + beta * C, of complex elements.
//
//   partial sums [batch][slice][output] ── WAYS threads per output, in a fixed order ──▶ D
//
// grid.x: blocks of OUTPUTS outputs; grid.y: products of the batch. The kernel overlaps the launch that writes the
// partial sums, so nothing may declare them constant.
#include "kernels/complex_gemm/term.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Index = long long;
using Sum = matmill::Term<decltype(Scalar::re)>;

extern "C" __global__ void __launch_bounds__(Config::OUTPUTS * Config::WAYS) complex_splitk_reduce(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  constexpr int IN_FLIGHT = 8, OUTPUTS = Config::OUTPUTS, WAYS = Config::WAYS;
  const int outputs = m * n, lane = threadIdx.x % OUTPUTS, way = threadIdx.x / OUTPUTS;
  const int output = blockIdx.x * OUTPUTS + lane;
  const Index batch = blockIdx.y;
  Sum sum{};
  if (output < outputs) {
    const Sum* const sums = reinterpret_cast<const Sum*>(workspace) + batch * slices * outputs + output;
    for (int first = way; first < slices; first += WAYS * IN_FLIGHT) {
      Sum loaded[IN_FLIGHT]{};
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; ++u) {
        const int i = first + u * WAYS;
        if (i < slices) loaded[u] = sums[Index(i) * outputs];
      }
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; ++u) sum += loaded[u];
    }
  }
  if constexpr (WAYS > 1) {
    __shared__ Sum ways[WAYS][OUTPUTS];
    ways[way][lane] = sum;
    __syncthreads();
    if (way > 0) return;
#pragma unroll
    for (int other = 1; other < WAYS; ++other) sum += ways[other][lane];
  }
  if (output >= outputs) return;
  const int row = output / n, column = output - row * n;
  const Scalar* const c = C == nullptr ? C : C + batch * c_batch;
  const Scalar total = sum;
  D[batch * d_batch + row * d_row + column * d_column] =
      matmill::complex_output(alpha, total, beta, c, row * c_row + column * c_column);
}
