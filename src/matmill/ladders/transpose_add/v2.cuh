// As v1 with 64 columns to a block: a lane takes two adjacent elements of a row of Y and D, a warp 64.
//
//   X ── two 16-byte vectors per thread ──▶ shared tile[64][32 V + V] ── barrier ──▶ each thread V pairs of D
#include "matmill/dtype/number.cuh"
#include "matmill/dtype/word.cuh"

using Index = long long;
using Number = matmill::NumberOf<Scalar>;
constexpr int V = 16 / sizeof(Scalar), SIDE = 32, COLUMNS = 2 * SIDE, DEEP = SIDE * V;

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
    v2(const Scalar* X, const Scalar* Y, Scalar* D, int m, int n, Index x_column, Index y_row, Index d_row,
       Number::Acc alpha, Number::Acc beta) {
  __shared__ __align__(16) Scalar tile[COLUMNS][DEEP + V];
  const int row0 = blockIdx.x * DEEP, column0 = blockIdx.y * COLUMNS;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int across = half * SIDE + threadIdx.y, column = column0 + across, row = row0 + threadIdx.x * V;
    const Scalar* const from = X + column * x_column + row;
    Scalar* const to = &tile[across][threadIdx.x * V];
    if (column < n && row + V <= m) {
      matmill::copy<V>(to, from);
    } else if (column < n) {
      for (int i = 0; row + i < m; ++i) to[i] = from[i];
    }
  }
  __syncthreads();
  const int across = 2 * threadIdx.x, column = column0 + across;
  if (column >= n) return;  // n is even
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int down = i * SIDE + threadIdx.y, row = row0 + down;
    if (row < m) {
      alignas(2 * sizeof(Scalar)) Scalar pair[2];
      matmill::copy<2>(pair, Y + row * y_row + column);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        pair[j] = Number::down(matmill::blend(alpha, Number::up(tile[across + j][down]), beta, Number::up(pair[j])));
      matmill::copy<2>(D + row * d_row + column, pair);
    }
  }
}
