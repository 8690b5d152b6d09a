// D = alpha * E * F + beta * C for at most 128 rows of E and columns of F and any k; see product.cuh for the long sum.
//
//   inner ─▶ partial sums [batch][block][output] ─▶ finish (or carry, then finish) ─▶ D
//
// Where partials is null there is one block, and it makes D itself.
//
// Everything is added in an order that launch and layout alone decide: the same inputs give the same bits.
#include "matmill/inner/product.cuh"

using Product = matmill::InnerProduct<Config>;

extern "C" __global__ void __launch_bounds__(Config::BS, Config::BLOCKS_PER_SM)
    inner(const Scalar* __restrict__ E, const Scalar* __restrict__ F, Acc* __restrict__ partials, Index k, Index e_row,
          Index e_k, Index e_batch, Index f_k, Index f_column, Index f_batch, const Scalar* C, Index c_row,
          Index c_column, Index c_batch, Scalar* D, Index d_row, Index d_column, Index d_batch, Acc alpha, Acc beta) {
  matmill::ptx::let_next_start();
  extern __shared__ __align__(16) unsigned char shared[];
  const Index batch = blockIdx.y;
  Product product;
  product.run({E + batch * e_batch, e_row, e_k}, {F + batch * f_batch, f_column, f_k}, k, shared);

  if (partials == nullptr) {
    C += batch * c_batch;
    D += batch * d_batch;
    product.sum(shared, [&](int row, int column, Acc sum) {
      const auto given = [&] { return C[row * c_row + column * c_column]; };
      D[row * d_row + column * d_column] = matmill::output_of(alpha, sum, beta, given);
    });
  } else {
    Acc* const own = partials + (batch * gridDim.x + blockIdx.x) * (Product::M * Product::N);
    product.sum(shared, [&](int row, int column, Acc sum) { own[row * Product::N + column] = sum; });
  }
}
