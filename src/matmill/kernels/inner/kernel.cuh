// D = alpha * E * F + beta * C for at most 128 rows of E and columns of F and any k; see product.cuh for the long sum, and
// units.cuh where it is done on the matrix units.
//
//   inner ─▶ partial sums [batch][block][output] ─▶ the last block ─▶ D
//                                                └▶ finish (or carry, then finish) ─▶ D
//
// Where `workspace` is null there is one block, and it makes D itself. Where `counter` is null the partial sums are left to a
// second launch.
//
// Everything is added in an order that launch and layout alone decide: the same inputs give the same bits.
#include "matmill/ptx/order.cuh"
#include "matmill/splitk/last_block.cuh"
#include "matmill/inner/packed_sums.cuh"
#include "matmill/inner/product.cuh"
#include "matmill/inner/mma.cuh"
#include "matmill/ptx/order.cuh"

template <class Config, bool UNITS>
struct ProductOf {
  using Type = matmill::InnerProduct<Config>;
};
template <class Config>
struct ProductOf<Config, true> {
  using Type = matmill::UnitProduct<Config>;
};
using Product = ProductOf<Config, Config::UNITS != 0>::Type;
using LastBlock = matmill::LastBlock<Config::BS, Product::M * Product::N, Config::BLOCKS_PER_SM>;
using Packed = matmill::PackedSums<Product, Config::BS, Config::UNITS != 0>;
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int SHARED_BYTES = larger(larger(LastBlock::BYTES, Packed::BYTES), Product::SHARED_BYTES);
static_assert(SHARED_BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");

extern "C" __global__ void __launch_bounds__(Config::BS, Config::BLOCKS_PER_SM)
    inner(const __grid_constant__ Args args) {
  matmill::ptx::begin();
  extern __shared__ __align__(16) unsigned char shared[];
  const Index batch = blockIdx.y;
  Product product;
  product.run({args.E + batch * args.e_batch, args.e_row, args.e_k},
              {args.F + batch * args.f_batch, args.f_column, args.f_k}, args.k, shared);

  const auto write = [&](Index batch, int row, int column, Acc sum) {
    const auto given = [&] { return args.C[batch * args.c_batch + row * args.c_row + column * args.c_column]; };
    args.D[batch * args.d_batch + row * args.d_row + column * args.d_column] =
        matmill::output_of(args.alpha, sum, args.beta, given);
  };
  if (args.workspace == nullptr) {
    product.sum(shared, [&](int row, int column, Acc sum) { write(batch, row, column, sum); });
    return;
  }
  const bool counts = args.counter != nullptr;
  const Index pitch = counts ? LastBlock::PITCH : Product::M * Product::N;
  Acc* const own = args.workspace + (batch * gridDim.x + blockIdx.x) * pitch;
  Packed::write(product, shared, own);
  if (!counts) return;
  LastBlock::pad(own);
  if (!matmill::is_last(args.counter, gridDim.x * gridDim.y)) return;
  for (Index other = 0; other < gridDim.y; ++other) {
    const Acc* const sums = args.workspace + other * gridDim.x * pitch;
    LastBlock::run(sums, gridDim.x, reinterpret_cast<Acc*>(shared), [&](int output, Acc sum) {
      write(other, output / Product::N, output % Product::N, sum);
    });
  }
}
