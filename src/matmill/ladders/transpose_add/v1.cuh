// D = alpha * X + beta * Y where X's columns are contiguous and Y's and D's rows are.
//
//   X ── one 16-byte vector per thread, 32 of them down each of 32 columns ──▶ shared tile[32][32 V + V] ── barrier ──▶
//   each thread V elements of D, one by one: a warp reads a row of the tile, and of Y, and stores a row of D
#include "matmill/dtype/number.cuh"
#include "matmill/dtype/word.cuh"

using Index = long long;
using Number = matmill::NumberOf<Scalar>;
constexpr int V = 16 / sizeof(Scalar), SIDE = 32, DEEP = SIDE * V;

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
    v1(const Scalar* X, const Scalar* Y, Scalar* D, int m, int n, Index x_column, Index y_row, Index d_row,
       Number::Acc alpha, Number::Acc beta) {
  __shared__ __align__(16) Scalar tile[SIDE][DEEP + V];
  const int row0 = blockIdx.x * DEEP, column0 = blockIdx.y * SIDE;
  {
    const int column = column0 + threadIdx.y, row = row0 + threadIdx.x * V;
    const Scalar* const from = X + column * x_column + row;
    Scalar* const to = &tile[threadIdx.y][threadIdx.x * V];
    if (column < n && row + V <= m) {
      matmill::copy<V>(to, from);
    } else if (column < n) {
      for (int i = 0; row + i < m; ++i) to[i] = from[i];
    }
  }
  __syncthreads();
  const int column = column0 + threadIdx.x;
  if (column >= n) return;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int down = i * SIDE + threadIdx.y, row = row0 + down;
    if (row < m) {
      const auto x = Number::up(tile[threadIdx.x][down]), y = Number::up(Y[row * y_row + column]);
      D[row * d_row + column] = Number::down(matmill::blend(alpha, x, beta, y));
    }
  }
}
