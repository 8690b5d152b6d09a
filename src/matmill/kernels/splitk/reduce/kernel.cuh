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

extern "C" __global__ void __launch_bounds__(Sum::THREADS) splitk_reduce(const __grid_constant__ Args args) {
  matmill::ptx::wait_then_trigger();
  const int n = args.n, outputs = args.m * n, output = Sum::own_output();
  const int row = output / n, column = output - row * n;
  const int from = Config::MIRRORED && row > column ? column * n + row : output;
  const Index batch = blockIdx.y;

  const Acc sum = Sum::sum(args.workspace + batch * args.slices * outputs, args.slices, outputs, from);
  if (Sum::writes(outputs)) {
    const auto read_c = [&] { return args.C[batch * args.c_batch + row * args.c_row + column * args.c_column]; };
    args.D[batch * args.d_batch + row * args.d_row + column * args.d_column] =
        matmill::output_of(args.alpha, sum, args.beta, read_c);
  }
}
