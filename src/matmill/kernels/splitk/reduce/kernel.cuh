// D = activation(alpha * (the sum of each output's `slices` partial sums) + beta * C + bias), rounded once.
//
//   partial sums [batch][slice][output] ── WAYS threads per output, in a fixed order ──▶ D
//
// grid.x: blocks of OUTPUTS outputs; grid.y: products of the batch. MIRRORED: partial sums exist on and above the
// diagonal only. BIAS: what the bias is added along; ACTIVATION: the one to apply. FLOAT32_D: C and D are of the
// sums' type where Scalar is narrower. C and D may alias. The kernel overlaps the launch that writes the partial sums, so nothing may
// declare them constant, as __restrict__ would.
#include "kernels/shared/result.cuh"
#include "matmill/ptx/dependent_launch.cuh"
#include "kernels/splitk/reduce.cuh"

using Sum = matmill::SliceSum<Config::OUTPUTS, Config::WAYS>;

using Result = matmill::ResultOf<Scalar, Config::FLOAT32_D != 0>::Type;
using ResultNumber = matmill::NumberOf<Result>;

extern "C" __global__ void __launch_bounds__(Sum::THREADS) splitk_reduce(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  const int outputs = m * n, output = Sum::own_output();
  const int row = output / n, column = output - row * n;
  const int from = Config::MIRRORED && row > column ? column * n + row : output;
  const Index batch = blockIdx.y;

  const Acc sum = Sum::sum(workspace + batch * slices * outputs, slices, outputs, from);
  if (Sum::writes(outputs)) {
    // Rounded as matmill::GemmResult does, so that it does not matter which of the two has the epilogue.
    Acc added = 0;
    if constexpr (Config::BIAS != matmill::NO_BIAS) {
      added = Number::up(bias[(Config::BIAS == matmill::ROW_BIAS ? column : row) * bias_stride]);
    }
    Acc d = Config::BIAS == matmill::NO_BIAS ? alpha * sum : matmill::blend(alpha, sum, Acc(1), added);
    // C is not read where beta is 0: it may then hold NaN or not exist.
    if (beta != 0) {
      const Index at = batch * c_batch + row * c_row + column * c_column;
      d = matmill::blend(alpha, sum, beta, ResultNumber::up(static_cast<const Result*>(C)[at]));
      if constexpr (Config::BIAS != matmill::NO_BIAS) d += added;
    }
    d = matmill::activated<Config::ACTIVATION>(d);
    static_cast<Result*>(D)[batch * d_batch + row * d_row + column * d_column] = ResultNumber::down(d);
  }
}
