// The one pass of ladders/inner/lane_product.cuh; each block writes its sums to its own part of a buffer.
//
//   global E, F ── 16-byte loads ──▶ registers e[U][TM][V], f[U][TN][V] ──▶ acc[TM][TN] ──▶ shuffles, shared ──▶
//   global partial_sums[block][output] ──▶ second launch: 16 threads per output add them in fixed order ──▶ D
//
// No atomics, so the order in which blocks finish has no effect: the same inputs give the same bits.
#include "ladders/inner/block_sum.cuh"
#include "ladders/inner/lane_product.cuh"

using Product = matmill::LaneProduct<Config>;

extern "C" __global__ void __launch_bounds__(Config::BS, 1)
    two_stage(const Scalar* __restrict__ E, const Scalar* __restrict__ F, Acc* __restrict__ partial_sums, Index k,
              Index e_row, Index, Index f_k, Index f_column) {
  constexpr int N = Product::N, TM = Product::TM, TN = Product::TN;
  Product product;
  product.run(E, F, k, e_row, f_k, f_column);

  __shared__ matmill::BlockSum<Acc, Config::BS, Product::S, TM * TN> block;
  block.put(product.acc);
  __syncthreads();
  for (int output = threadIdx.x; output < Product::M * N; output += Config::BS) {
    const int row = output / N, column = output % N;
    const Acc sum = block.total(row / TM * Product::ACROSS + column / TN, row % TM * TN + column % TN);
    partial_sums[Index(blockIdx.x) * (Product::M * N) + output] = sum;
  }
}
