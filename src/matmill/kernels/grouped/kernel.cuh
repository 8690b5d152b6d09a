// D = alpha * A * B for groups that follow each other along one dimension of a matrix, of any strides and alignments. The
// ends of the groups are on the device: the host knows no group's size.
//
//   rows     A [rows of all groups][k], B [group][k][n], D [rows of all groups][n]: as many blocks as tiles could be needed;
//            those without a tile return. Rows behind the last group are 0.
//   terms    A [m][terms of all groups], B [terms of all groups][n], D [group][m][n]: a block per tile and group
#include "kernels/grouped/tile.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Tile = matmill::Pipeline::Tile;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM) grouped_gemm(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::GroupOffsets offsets{ends, words, groups, Config::TERMS ? k : m};
  matmill::Group own{A, B, nullptr, D, a_row, a_column, b_row, b_column, 0, 0, d_row, d_column, m, n, k, 0};
  int tile = blockIdx.x;
  if constexpr (Config::TERMS) {
    const int group = blockIdx.y, first = offsets.start(group);
    own.a = A + first * a_column;
    own.b = B + first * b_row;
    own.d = D + group * d_batch;
    own.k = offsets.end(group) - first;
  } else {
    const matmill::GroupTile work = matmill::find_group<Tile::BM>(offsets, (n + Tile::BN - 1) / Tile::BN, tile);
    if (work.group > groups) return;
    own.a = A + work.first * a_row;
    own.b = B + (work.group < groups ? work.group * b_batch : 0);
    own.d = D + work.first * d_row;
    own.m = work.last - work.first;
    own.k = work.group < groups ? k : 0;
    tile = work.tile;
  }
  matmill::compute_tile(shared, own, tile, alpha, 0);
}
