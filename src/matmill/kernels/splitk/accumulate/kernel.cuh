// totals += the sum of each output's `slices` partial sums: one launch for each piece of a k that arrives in pieces.
#include "kernels/splitk/reduce.cuh"

using Sum = matmill::SliceSum<Config::OUTPUTS, Config::WAYS>;

extern "C" __global__ void __launch_bounds__(Sum::THREADS) accumulate_partial(PARAMETERS) {
  const int output = Sum::own_output();
  const Acc sum = Sum::sum(workspace, slices, outputs, output);
  if (Sum::writes(outputs)) D[output] += sum;
}
