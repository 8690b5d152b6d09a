// D = alpha * (the sum of each output's `slices` partial sums) + beta * C.
//
//   partial sums [batch][slice][output] ── WAYS threads per output, in a fixed order ──▶ D
//
// grid.x: blocks of OUTPUTS outputs; grid.y: products of the batch. Where MIRRORED, only the partial sums on and above
// the diagonal exist. C and D may be the same memory. It overlaps the launch that writes the partial sums, so nothing
// may say that they do not change while it runs, as __restrict__ would.
#include "matmill/ptx/order.cuh"
#include "matmill/splitk/reduce.cuh"

using Sum = matmill::SliceSum<Config::OUTPUTS, Config::WAYS>;

extern "C" __global__ void __launch_bounds__(Sum::THREADS) splitk_reduce(const __grid_constant__ Args args) {
  matmill::ptx::begin();
  const int n = args.n, outputs = args.m * n, output = Sum::own();
  const int row = output / n, column = output - row * n;
  const int from = Config::MIRRORED && row > column ? column * n + row : output;
  const Index batch = blockIdx.y;

  const Acc sum = Sum::sum(args.workspace + batch * args.slices * outputs, args.slices, outputs, from);
  if (Sum::writes(outputs)) {
    const auto given = [&] { return args.C[batch * args.c_batch + row * args.c_row + column * args.c_column]; };
    args.D[batch * args.d_batch + row * args.d_row + column * args.d_column] =
        matmill::output_of(args.alpha, sum, args.beta, given);
  }
}
