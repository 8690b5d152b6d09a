// D = activation(alpha * A * B + beta * C + bias) on the FMA units, with sums that depend on n, k and the element type
// alone: slices of `slice_k` terms, each added term by term from zero, and then slice after slice.
//
//   few tiles of D:   a block for each slice (grid.z) ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
//   many tiles of D:  a block for all slices, one after the other; totals wait in shared memory ─▶ D
//
// Both add the same numbers in the same order. gemm/simt.cuh has the pipeline, which starts anew with each slice.
#include "kernels/gemm/simt.cuh"
#include "kernels/shared/result.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::SimtGemm<Scalar, Config>;
using Out = matmill::ResultOf<Scalar, true>::Type;
using Result = matmill::GemmResult<Scalar, Out, Config>;

// Adds this thread's sums to its totals behind the pipeline's stages, where no other thread reads or writes, or starts
// them; TO_SUMS leaves the result in the sums.
template <bool TO_SUMS>
__device__ __forceinline__ void add_totals(Tile& tile, Acc* totals, bool first) {
#pragma unroll
  for (int i = 0; i < Tile::TM; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j) {
      Acc& total = totals[(i * Tile::TN + j) * Tile::THREADS + threadIdx.x];
      const Acc sum = first ? tile.acc[i][j] : total + tile.acc[i][j];
      (TO_SUMS ? tile.acc[i][j] : total) = sum;
      if constexpr (!TO_SUMS) tile.acc[i][j] = 0;
    }
  }
}

// A null `workspace` means that a block has all slices of its tile.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) gemm_slices(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  A += batch * a_batch + origin.row * a_row;
  B += batch * b_batch + origin.column * b_column;
  Acc* const totals = reinterpret_cast<Acc*>(shared + Tile::SHARED_BYTES);

  Tile tile;
  int first = blockIdx.z * slice_k;
#pragma unroll 1
  for (int done = 0;; ++done) {
    const int terms = min(slice_k, k - first);
    tile.run(reinterpret_cast<Scalar*>(shared),
             Tile::CopyA(A + first * a_column, a_row, a_column, m - origin.row, terms),
             Tile::CopyB(B + first * b_row, b_column, b_row, n - origin.column, terms), terms);
    first += terms;
    if (workspace != nullptr) break;
    if (first >= k) {
      if (done > 0) add_totals<true>(tile, totals, false);
      break;
    }
    add_totals<false>(tile, totals, done == 0);
    __syncthreads();  // the next slice's copies overwrite what others may still read
  }

  const Out* c = static_cast<const Out*>(C) + batch * c_batch;
  const Result result{c, bias, c_row, c_column, bias_stride, alpha, beta, m, n};
  Acc* d = workspace + (batch * gridDim.z + blockIdx.z) * m * n;
  if (workspace == nullptr) {
    d = static_cast<Acc*>(D) + batch * d_batch;
  } else {
    d_row = n;
    d_column = 1;
  }
#pragma unroll
  for (int i = 0; i < Tile::TM; ++i) {
    const int r = origin.row + tile.row + Tile::row_of(i);
    if (r >= m) continue;
    const Acc of_row = result.of_row(r);
#pragma unroll
    for (int j = 0; j < Tile::TN; j += Config::D_VEC) {
      const int column = origin.column + tile.column + Tile::column_of(j);
      if (column >= n) continue;
      alignas(16) Acc out[Config::D_VEC];
#pragma unroll
      for (int v = 0; v < Config::D_VEC; ++v) {
        const Acc sum = tile.acc[i][j + v];
        out[v] = workspace != nullptr ? sum : result(sum, r, column + v, of_row + result.of_column(column + v));
      }
      if constexpr (Config::D_VEC == 1) {
        d[r * d_row + column * d_column] = out[0];
      } else {
        *reinterpret_cast<uint4*>(&d[r * d_row + column]) = *reinterpret_cast<const uint4*>(out);
      }
    }
  }
}
