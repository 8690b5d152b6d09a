// D = alpha * E * F + beta * C for at most 128 rows of E and columns of F and any k. inner/simt.cuh has the main loop
// on the FMA units, inner/mma.cuh the one on tensor cores.
//
//   inner ─▶ partial sums [batch][block][output] ─▶ the last block ─▶ D
//                                                └▶ splitk_reduce (or accumulate_partial, then splitk_reduce) ─▶ D
//
// A null `workspace` means one block, which writes D. A null `counter` leaves the reduction to a second launch.
//
// The order of all additions depends on launch and layout alone: the same inputs give the same bits.
#include "kernels/inner/mma.cuh"
#include "kernels/inner/packed_sums.cuh"
#include "kernels/inner/simt.cuh"
#include "matmill/ptx/dependent_launch.cuh"
#include "kernels/splitk/last_block.cuh"

template <class Config, bool MMA>
struct MainloopOf {
  using Type = matmill::SimtMainloop<Config>;
};
template <class Config>
struct MainloopOf<Config, true> {
  using Type = matmill::MmaMainloop<Config>;
};
using Mainloop = MainloopOf<Config, Config::MMA != 0>::Type;
using LastBlock = matmill::LastBlock<Config::BS, Mainloop::M * Mainloop::N, Config::BLOCKS_PER_SM>;
using Packed = matmill::PackedSums<Mainloop, Config::BS, Config::MMA != 0>;
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int SHARED_BYTES = larger(larger(LastBlock::BYTES, Packed::BYTES), Mainloop::SHARED_BYTES);
static_assert(SHARED_BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");

extern "C" __global__ void __launch_bounds__(Config::BS, Config::BLOCKS_PER_SM) inner(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const Index batch = blockIdx.y;
  Mainloop mainloop;
  mainloop.run({E + batch * e_batch, e_row, e_k}, {F + batch * f_batch, f_column, f_k}, k, shared);

  const auto write = [&](Index batch, int row, int column, Acc sum) {
    const auto read_c = [&] { return C[batch * c_batch + row * c_row + column * c_column]; };
    D[batch * d_batch + row * d_row + column * d_column] = matmill::output_of(alpha, sum, beta, read_c);
  };
  if (workspace == nullptr) {
    mainloop.sum(shared, [&](int row, int column, Acc sum) { write(batch, row, column, sum); });
    return;
  }
  const bool counts = counter != nullptr;
  const Index pitch = counts ? LastBlock::PITCH : Mainloop::M * Mainloop::N;
  Acc* const own = workspace + (batch * gridDim.x + blockIdx.x) * pitch;
  Packed::write(mainloop, shared, own);
  if (!counts) return;
  LastBlock::zero_padding(own);
  if (!matmill::is_last_block(counter, gridDim.x * gridDim.y)) return;
  for (Index other = 0; other < gridDim.y; ++other) {
    const Acc* const sums = workspace + other * gridDim.x * pitch;
    LastBlock::run(sums, gridDim.x, reinterpret_cast<Acc*>(shared),
                   [&](int output, Acc sum) { write(other, output / Mainloop::N, output % Mainloop::N, sum); });
  }
}
