// D = alpha * E * E^T + beta * C: one input, read once, and only the tiles on and above the diagonal.
//
//   global E ── up to 16 bytes a load ──▶ registers e[U][T][V] (and those of the tile's columns, off the diagonal) ──▶
//   acc ──▶ shuffles, shared ──▶ global partial_sums[block][output] ──▶ second launch: adds in fixed order, mirrors ──▶ D
//
//   B = ⌈M / T⌉ rows of tiles; B = 1: a thread has all rows of its k's and sums the T (T + 1) / 2 outputs of a triangle
//                              B > 1: thread t has tile t % S = s of the triangle (I <= J); S is the first power of
//                                     two that is at least B (B + 1) / 2; other threads have no tile and load nothing
//
// (M + 1) / 2 FMAs per element from global memory, and half the FMAs of a general product.
#include "ladders/inner/block_sum.cuh"
#include "matmill/dtype/epilogue.cuh"
#include "kernels/inner/piece.cuh"

constexpr int M = Config::M, T = Config::T, V = Config::V, U = Config::U, S = Config::S, BS = Config::BS;
constexpr int B = (M + T - 1) / T;
constexpr bool TRIANGLE = B == 1;
constexpr int OUT = TRIANGLE ? T * (T + 1) / 2 : T * T;
static_assert(B * (B + 1) / 2 <= S, "a thread for every tile");
using Piece = matmill::Piece<Scalar, T, V, matmill::ALONG_K, Config::E_WIDTH>;

// The index of the sum of row i and column j >= i of a tile: row by row.
__device__ __forceinline__ constexpr int place(int i, int j) {
  return TRIANGLE ? i * T - i * (i - 1) / 2 + j - i : i * T + j;
}

// Tiles of the triangle before row I of tiles.
__device__ __forceinline__ constexpr int before(int I) { return I * B - I * (I - 1) / 2; }

struct Sums {
  Acc acc[OUT] = {};

  template <class Rows, class Columns>
  __device__ __forceinline__ void add(const Rows& rows, const Columns& columns) {
#pragma unroll
    for (int i = 0; i < T; ++i)
#pragma unroll
      for (int j = TRIANGLE ? i : 0; j < T; ++j) acc[place(i, j)] += rows(i) * columns(j);
  }

  __device__ __forceinline__ void add(const Piece& rows, const Piece& columns) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      add([&](int i) { return Number::up(rows.at(i, v)); }, [&](int j) { return Number::up(columns.at(j, v)); });
  }
};

extern "C" __global__ void __launch_bounds__(BS, 1)
    gram(const Scalar* __restrict__ E, Acc* __restrict__ partial_sums, Index k, Index e_row) {
  constexpr int SHARES = BS / S;
  constexpr Index STEP = Index(Config::GS) * SHARES;
  const int s = threadIdx.x % S;
  int I = 0;
  while (I < B && before(I + 1) <= s) ++I;
  const int J = I + s - before(I);
  const Scalar* const rows = E + I * T * e_row;
  const Scalar* const columns = E + J * T * e_row;
  const int last_row = M % T == 0 ? T - 1 : min(T, M - I * T) - 1;
  const int last_column = M % T == 0 ? T - 1 : min(T, M - J * T) - 1;

  Sums sums;
  // A thread without a tile has no k's either.
  const Index first = I < B ? Index(blockIdx.x) * SHARES + threadIdx.x / S : k;
  const Index pieces = k / V;
  Index piece = first;
  for (; piece + (U - 1) * STEP < pieces; piece += U * STEP) {
    Piece is[U], js[TRIANGLE ? 1 : U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      is[u].read(rows + (piece + u * STEP) * V, e_row, 1, last_row);
      if constexpr (!TRIANGLE) js[u].read(columns + (piece + u * STEP) * V, e_row, 1, last_column);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) sums.add(is[u], TRIANGLE ? is[u] : js[TRIANGLE ? 0 : u]);
  }
  for (; U > 1 && piece < pieces; piece += STEP) {
    Piece i, j;
    i.read(rows + piece * V, e_row, 1, last_row);
    if constexpr (!TRIANGLE) j.read(columns + piece * V, e_row, 1, last_column);
    sums.add(i, TRIANGLE ? i : j);
  }
  // A thread without a tile starts beyond the last k % V terms as well.
  for (Index at = I < B ? pieces * V + first : k; at < k; at += STEP) {
    sums.add([&](int i) { return Number::up(rows[min(i, last_row) * e_row + at]); },
             [&](int j) { return Number::up(columns[min(j, last_column) * e_row + at]); });
  }

  __shared__ matmill::BlockSum<Acc, BS, S, OUT> block;
  block.put(sums.acc);
  __syncthreads();
  for (int output = threadIdx.x; output < M * M; output += BS) {
    const int row = output / M, column = output % M;
    if (row <= column) {
      const Acc sum = block.total(before(row / T) + column / T - row / T, place(row % T, column % T));
      partial_sums[Index(blockIdx.x) * (M * M) + output] = sum;
    }
  }
}
