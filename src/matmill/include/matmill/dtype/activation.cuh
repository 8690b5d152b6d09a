// Activations of an epilogue, in float32 or float64, by the numbers that the host emits (problem.py, ACTIVATIONS).
#pragma once

namespace matmill {

enum Activation { NO_ACTIVATION, RELU, GELU, GELU_TANH, SILU };

// NaN stays NaN. Formulas and constants are those of torch.nn.functional: relu, gelu, gelu with approximate="tanh", silu.
template <int ACTIVATION, class Real>
__device__ __forceinline__ Real activated(Real x) {
  static_assert(ACTIVATION >= NO_ACTIVATION && ACTIVATION <= SILU, "an activation of the list");
  if constexpr (ACTIVATION == RELU) {
    return x < 0 ? Real(0) : x;
  } else if constexpr (ACTIVATION == GELU) {
    return Real(0.5) * x * (1 + erf(x * Real(0.70710678118654752)));
  } else if constexpr (ACTIVATION == GELU_TANH) {
    return Real(0.5) * x * (1 + tanh(Real(0.79788456080286536) * (x + Real(0.044715) * x * x * x)));
  } else if constexpr (ACTIVATION == SILU) {
    return x / (1 + exp(-x));
  } else {
    return x;
  }
}

// What a bias is added along: D's columns get an element each (row vector), or its rows do (column vector).
enum Bias { NO_BIAS, ROW_BIAS, COLUMN_BIAS };

}  // namespace matmill
