// Copies matrices of complex elements, so that a real kernel multiplies them.
//
//   X, any strides ── conjugate, scale ──▶ D: each element x = (re, im) as itself, or as the 2 x 2 block of a real matrix
//
// A complex matrix A whose rows are contiguous is in memory a real one with twice the columns: re, im, re, im. Its real
// product with a matrix of blocks is the complex product, in the same layout. A block has one row for each part of A's
// element, (re, im) and (-im, re); where A is to be conjugated, the second is negated. A block in columns is transposed.
//
// A tile is WIDTH = 2^shift columns and THREADS / WIDTH * EACH rows. Each thread loads EACH elements before it stores
// any. blockIdx.x counts tiles, along the columns first, and blockIdx.y matrices. Strides are in complex elements.
#include "matmill/ptx/dependent_launch.cuh"

namespace {
constexpr int BLOCK_IN_ROWS = 1, BLOCK_IN_COLUMNS = 2;

__device__ __forceinline__ void store(Scalar* to, Scalar first, Scalar second) {
  to[0] = first;
  to[1] = second;
}
}  // namespace

extern "C" __global__ void __launch_bounds__(Config::THREADS) complex_copy(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  constexpr int EACH = Config::EACH;
  const int width = 1 << shift, height = Config::THREADS >> shift;
  const unsigned across = unsigned((columns + width - 1) >> shift);
  const long long column = (long long)(blockIdx.x % across) * width + (threadIdx.x & (width - 1));
  const long long row = (long long)(blockIdx.x / across) * (height * EACH) + (threadIdx.x >> shift);
  if (column >= columns) return;
  const Scalar* const from = X + 2 * (blockIdx.y * x_batch + row * x_row + column * x_column);
  Scalar* const to = D + 2 * (blockIdx.y * d_batch + row * d_row + column * d_column);
  Scalar re[EACH], im[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (row + i * height < rows) {
      re[i] = from[2 * i * height * x_row];
      im[i] = from[2 * i * height * x_row + 1];
    }
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (row + i * height < rows) {
      const Scalar x = re[i], y = conjugate ? -im[i] : im[i];
      const bool scaled = scale_im != 0;  // a real factor is left to the product, so that 0 times infinity is not added
      const Scalar real = scaled ? x * scale_re - y * scale_im : x;
      const Scalar imag = scaled ? x * scale_im + y * scale_re : y;
      Scalar* const own = to + 2 * i * height * d_row;
      const Scalar sign = negate ? Scalar(-1) : Scalar(1);
      if (block == BLOCK_IN_COLUMNS) {
        store(own, real, -sign * imag);
        store(own + 2 * second, imag, sign * real);
      } else {
        store(own, real, imag);
        if (block == BLOCK_IN_ROWS) store(own + 2 * second, -sign * imag, sign * real);
      }
    }
}
