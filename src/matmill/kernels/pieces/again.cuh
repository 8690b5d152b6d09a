// D = activation(alpha * A * B + beta * C + bias) where pieces in the workspace do not suffice: by mma.sync on elements that
// are split in registers, which hgemm/warp_tile_f32.cuh has. The blocks of the product of pieces compute it instead.
#pragma once

#include "kernels/hgemm/mma.cuh"
#include "kernels/pieces/piece.cuh"
#include "matmill/ptx/mbarrier.cuh"

namespace matmill {

// The tile of a block's first eight warps. Few sums a warp leave registers for pieces in blocks of 512 threads.
template <class Config>
struct AgainConfig {
  static constexpr int BM = 128, BN = 64, BK = 32, WARPS_M = 4, WARPS_N = 2, STAGES = 3, GROUP_M = 8, SUM_K = 32;
  static constexpr int A_K_INNER = Config::AGAIN_A_K_INNER, A_VEC = Config::AGAIN_A_VEC;
  static constexpr int B_K_INNER = Config::AGAIN_B_K_INNER, B_VEC = Config::AGAIN_B_VEC, D_VEC = 1;
  static constexpr int SHARED_BYTES = Config::AGAIN_SHARED_BYTES;
};

// A and B as they are in memory: strides in elements.
struct WholeOperands {
  const float *a, *b;
  long long a_row, a_column, a_batch, b_row, b_column, b_batch;
  int k, batch;
};

// Computes the block's share of all products where the config has pieces, and they do not suffice. Returns whether it did.
// A function of its own: inlined, it costs the main loop of the product of pieces 10% on an H200. `barriers` is the address
// of the block's first mbarrier.
template <class Config, class Outputs, class Out>
__device__ __noinline__ bool multiplied_again(unsigned char* shared, unsigned barriers, int barrier_count,
                                              const void* workspace, float deepest, const WholeOperands& x,
                                              const Outputs& outputs, Out* D, long long d_row, long long d_column,
                                              long long d_batch, long long c_batch) {
  if constexpr (Config::PIECES == 0) {
    return false;
  } else {
    using Again = AgainConfig<Config>;
    using Tile = MmaGemm<float, Again, false>;
    if (pieces_suffice(workspace, deepest)) return false;
    if (threadIdx.x >= Tile::THREADS) return true;
    if (threadIdx.x == 0) {
      for (int i = 0; i < barrier_count; ++i) ptx::mbarrier_inval(barriers + 8 * i);
    }
    Tile::sync();  // stages may be where barriers were
    const int m = outputs.m, n = outputs.n;
    const int tiles = (m + Tile::BM - 1) / Tile::BM * ((n + Tile::BN - 1) / Tile::BN);
    for (int index = blockIdx.x; index < tiles * x.batch; index += gridDim.x) {
      const Origin origin = tile_origin<Tile, Again::GROUP_M>(index % tiles, m, n);
      const long long number = index / tiles;
      const typename Tile::Work work{x.a + number * x.a_batch + origin.row * x.a_row,
                                     x.b + number * x.b_batch + origin.column * x.b_column, origin, x.k};
      Tile tile;
      tile.run(shared, typename Tile::CopyA(work.a, x.a_row, x.a_column, m - origin.row, x.k),
               typename Tile::CopyB(work.b, x.b_column, x.b_row, n - origin.column, x.k), x.k);
      tile.complete([&] { return work; }, x.a_row, x.a_column, x.b_row, x.b_column, m, n);
      Outputs own = outputs;
      own.C += number * c_batch;
      tile.store_result(own, D + number * d_batch, d_row, d_column, origin);
      Tile::sync();  // the next tile's copies overwrite what others may still read
    }
    return true;
  }
}

}  // namespace matmill
