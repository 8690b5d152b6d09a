// D = alpha * A * B + beta * C for batches of small matrices of complex elements, in any layout.
//
//   A, B, C ── loads, of which L1 serves all but the first of an element ──▶ registers ──▶ D
//
// A thread computes one element of D. A block has as many whole matrices as it has threads for, and blockIdx.x counts
// its groups of them: each matrix is read from memory once, and nothing is copied to shared memory. Strides are in
// complex elements.
#include "matmill/dtype/complex.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Index = long long;

extern "C" __global__ void __launch_bounds__(Config::THREADS) complex_gemm(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  using Real = decltype(Scalar::re);
  const unsigned elements = unsigned(m * n), matrices = Config::THREADS / elements;
  const unsigned which = threadIdx.x / elements, element = threadIdx.x % elements;
  const Index matrix = Index(blockIdx.x) * matrices + which;
  if (which >= matrices || matrix >= batch) return;
  const int row = element / unsigned(n), column = element % unsigned(n);
  const Scalar* a = A + matrix * a_batch + row * a_row;
  const Scalar* b = B + matrix * b_batch + column * b_column;
  const Real a_sign = conjugate_a ? -1 : 1, b_sign = conjugate_b ? -1 : 1;
  Scalar sum{};
#pragma unroll 4
  for (int i = 0; i < k; ++i) {
    const Scalar x = a[i * a_column], y = b[i * b_row];
    const Real x_im = a_sign * x.im, y_im = b_sign * y.im;
    sum.re += x.re * y.re;
    sum.re -= x_im * y_im;
    sum.im += x.re * y_im;
    sum.im += x_im * y.re;
  }
  const Index c = matrix * c_batch + row * c_row + column * c_column;
  D[matrix * d_batch + row * d_row + column * d_column] =
      C == nullptr ? alpha * sum : blend(alpha, sum, beta, C[c]);
}
