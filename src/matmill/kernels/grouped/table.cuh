// D = alpha * A * B + beta * C for each group of a list, of any sizes, strides and alignments, in one launch. A table in
// the kernel's parameters has the groups in the order of their tiles. One block per BM x BN tile of a group's D.
#include "kernels/grouped/tile.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::Pipeline::Tile;
using Table = matmill::GroupTable<Config::GROUPS>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    grouped_list(const __grid_constant__ Table table, int count, Acc alpha, Acc beta) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(128) unsigned char shared[];
  const int tile = blockIdx.x;
  const int group = matmill::last_not_behind(count, tile, [&](int i) { return table.groups[i].first_tile; });
  const matmill::Group own = table.groups[group];
  matmill::compute_tile(shared, own, tile - own.first_tile, alpha, beta);
}
