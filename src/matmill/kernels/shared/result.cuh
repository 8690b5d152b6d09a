// One output of a product whose kernel has the epilogue: activation(alpha * sum + beta * C + bias).
#pragma once

#include "matmill/dtype/activation.cuh"
#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// The type of C and D: that of the sums, or that of A and B.
template <class Scalar, bool IS_SUM>
struct ResultOf {
  using Type = Scalar;
};
template <class Scalar>
struct ResultOf<Scalar, true> {
  using Type = typename NumberOf<Scalar>::Acc;
};

// Of one product of a batch. C has D's type Out, the bias that of A and B.
template <class Scalar, class Out, class Config>
struct GemmResult {
  static constexpr bool PLAIN =
      Config::HAS_C == 0 && Config::BIAS == NO_BIAS && Config::ACTIVATION == NO_ACTIVATION;  // alpha * sum
  static constexpr bool ROW_BIASES = Config::BIAS == ROW_BIAS;
  const Out* C;
  const Scalar* bias;
  Index c_row, c_column, bias_stride;
  Acc alpha, beta;
  int m, n;

  __device__ __forceinline__ Acc bias_of(int index, int extent) const {
    return index < extent ? NumberOf<Scalar>::up(bias[index * bias_stride]) : Acc(0);
  }

  // What column biases add to a row.
  __device__ __forceinline__ Acc of_row(int row) const {
    return Config::BIAS == COLUMN_BIAS ? bias_of(row, m) : Acc(0);
  }

  // What row biases add to a column.
  __device__ __forceinline__ Acc of_column(int column) const {
    return ROW_BIASES ? bias_of(column, n) : Acc(0);
  }

  __device__ __forceinline__ Acc operator()(Acc sum, int row, int column, Acc added) const {
    Acc x = alpha * sum;
    if constexpr (Config::HAS_C) {  // otherwise beta is 0, and C may hold NaN, or not exist
      if (row < m && column < n) x = blend(alpha, sum, beta, NumberOf<Out>::up(C[row * c_row + column * c_column]));
    }
    if constexpr (Config::BIAS != NO_BIAS) x += added;
    return activated<Config::ACTIVATION>(x);
  }
};

}  // namespace matmill
