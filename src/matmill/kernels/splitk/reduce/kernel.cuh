// D = alpha * (the sum of each output's `slices` partial sums) + beta * C.
//
//   partial sums [batch][slice][output] ── WAYS threads per output, in a fixed order ──▶ D
//
// grid.x: blocks of OUTPUTS outputs; grid.y: products of the batch. MIRRORED: partial sums exist on and above the
// diagonal only. C and D may alias. The kernel overlaps the launch that writes the partial sums, so nothing may declare
// them constant, as __restrict__ would.
#include "matmill/ptx/dependent_launch.cuh"
#include "matmill/splitk/reduce.cuh"

using Sum = matmill::SliceSum<Config::OUTPUTS, Config::WAYS>;

extern "C" __global__ void __launch_bounds__(Sum::THREADS) splitk_reduce(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  const int outputs = m * n, output = Sum::own_output();
  const int row = output / n, column = output - row * n;
  const int from = Config::MIRRORED && row > column ? column * n + row : output;
  const Index batch = blockIdx.y;

  const Acc sum = Sum::sum(workspace + batch * slices * outputs, slices, outputs, from);
  if (Sum::writes(outputs)) {
    const auto read_c = [&] { return C[batch * c_batch + row * c_row + column * c_column]; };
    D[batch * d_batch + row * d_row + column * d_column] = matmill::output_of(alpha, sum, beta, read_c);
  }
}
