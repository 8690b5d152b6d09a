// totals += the sum of each output's `slices` partial sums: one launch for each piece of a k that arrives in pieces.
#include "matmill/splitk/reduce.cuh"

using Sum = matmill::SliceSum<Config::OUTPUTS, Config::WAYS>;

extern "C" __global__ void __launch_bounds__(Sum::THREADS) accumulate_partial(const __grid_constant__ Args args) {
  const int output = Sum::own_output();
  const Acc sum = Sum::sum(args.workspace, args.slices, args.outputs, output);
  if (Sum::writes(args.outputs)) args.D[output] += sum;
}
