// D = alpha * A * B for groups whose ends are on the device, as kernel.cuh, of aligned 16-bit elements by wgmma. Maps
// are of the whole matrices; that of D is another one's where TMA does not store it.
#include "kernels/grouped/wgmma_pipeline.cuh"

static_assert(!Config::TERMS || (!Tile::A_K_MAJOR && !Tile::B_K_MAJOR), "terms of k are rows of a box");

extern "C" __global__ void __launch_bounds__(Tile::THREADS, 1) grouped_wgmma(PARAMETERS) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  if (threadIdx.x == 0) {
    matmill::ptx::prefetch_tensor_map(&a_map);
    matmill::ptx::prefetch_tensor_map(&b_map);
  }
  const matmill::GroupOffsets offsets{ends, words, groups, Config::TERMS ? k : m};
  const auto work_at = [&](int index) -> GroupWork {
    Outputs outputs{nullptr, nullptr, 0, 0, 0, alpha, 0, m, n};
    const int columns = (n + Tile::BN - 1) / Tile::BN;
    if constexpr (Config::TERMS) {
      const int tiles = (m + Tile::BM - 1) / Tile::BM * columns, group = index / tiles;
      if (group >= groups) return {};
      const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(index % tiles, m, n);
      const int first = offsets.start(group), terms = offsets.end(group) - first;
      const int steps = (terms + Tile::BK - 1) / Tile::BK;
      return {{origin.row, origin.column, 0, steps, 0, group, first}, terms - (steps - 1) * Tile::BK, 0, &a_map, &b_map, &d_map,
              outputs, D + group * d_batch, d_row, d_column, true};
    } else {
      const auto own = matmill::find_group<Tile::BM>(offsets, columns, index);
      if (own.group > groups) return {};
      const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(own.tile, own.last - own.first, n);
      const int steps = own.group < groups ? (k + Tile::BK - 1) / Tile::BK : 0;
      outputs.m = own.last;
      return {{own.first + origin.row, origin.column, 0, steps, 0, 0, 0}, Tile::BK, own.group, &a_map, &b_map, &d_map,
              outputs, D, d_row, d_column, true};
    }
  };
  compute_tiles(dynamic, work_at);
}
