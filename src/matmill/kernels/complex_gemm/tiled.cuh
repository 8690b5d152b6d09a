// D = alpha * A * B + beta * C of complex elements of any sizes and strides, on the FMA units; gemm/simt.cuh has the
// pipeline. One block per BM x BN tile of D (grid.x), product of the batch (grid.y) and split-K slice (grid.z).
//
//   one slice:        complex_gemm_tiled ─▶ D
//   several slices:   complex_gemm_tiled ─▶ partial sums [batch][slice][m][n] ─▶ complex_splitk_reduce ─▶ D
#include "kernels/complex_gemm/term.cuh"
#include "kernels/gemm/simt.cuh"
#include "kernels/splitk/split_k.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Index = long long;
using Real = decltype(Scalar::re);
using Element = matmill::Term<Real, Config::CONJUGATE != 0>;
using Tile = matmill::SimtGemm<Element, Config>;

// A null `workspace` means one slice: this kernel writes D.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) complex_gemm_tiled(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Index batch = blockIdx.y;
  const matmill::KSlice slice = matmill::KSlice::of_block<Config::BK>(k);
  A += batch * a_batch + origin.row * a_row + slice.first * a_column;
  B += batch * b_batch + origin.column * b_column + slice.first * b_row;

  Tile tile;
  tile.run(reinterpret_cast<Element*>(shared),
           Tile::CopyA(reinterpret_cast<const Element*>(A), a_row, a_column, m - origin.row, slice.terms),
           Tile::CopyB(reinterpret_cast<const Element*>(B), b_column, b_row, n - origin.column, slice.terms), slice.terms);
  if (tile.slice > 0) return;
  if (workspace == nullptr) {
    C = C == nullptr ? C : C + batch * c_batch;
    D += batch * d_batch;
  } else {
    C = nullptr;
    D = workspace + (batch * gridDim.z + blockIdx.z) * m * n;
    d_row = n;
    d_column = 1;
    alpha = {1, 0, 1};
  }
#pragma unroll
  for (int i = 0; i < Tile::TM; ++i) {
    const int row = origin.row + tile.row + Tile::row_of(i);
    if (row >= m) continue;
#pragma unroll
    for (int j = 0; j < Tile::TN; j += Config::D_VEC) {
      const int column = origin.column + tile.column + Tile::column_of(j);
      if (column >= n) continue;
      alignas(16) Scalar out[Config::D_VEC];
#pragma unroll
      for (int v = 0; v < Config::D_VEC; ++v) {
        const Scalar sum = tile.acc[i][j + v];
        out[v] = matmill::complex_output(alpha, sum, beta, C, row * c_row + (column + v) * c_column);
      }
      Scalar* const to = &D[row * d_row + column * d_column];
      if constexpr (Config::D_VEC == 1) {
        *to = out[0];
      } else {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(out);
      }
    }
  }
}
