// D = alpha * A * B + beta * C for each group of a list, as table.cuh, of aligned 16-bit elements by wgmma. The table in the
// kernel's parameters has the maps of each group's A and B.
#include "kernels/grouped/wgmma_pipeline.cuh"

struct MappedGroup {
  matmill::TensorMap a, b;
  matmill::Group group;
};
struct MappedTable {
  MappedGroup groups[Config::GROUPS];
};

extern "C" __global__ void __launch_bounds__(Tile::THREADS, 1)
    grouped_list_wgmma(const __grid_constant__ MappedTable table, int count, int tiles, float alpha, float beta) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const auto work_at = [&](int index) -> GroupWork {
    if (index >= tiles) return {};
    const int number = matmill::last_not_behind(count, index, [&](int i) { return table.groups[i].group.first_tile; });
    const matmill::Group& own = table.groups[number].group;
    const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(index - own.first_tile, own.m, own.n);
    const Outputs outputs{static_cast<const Scalar*>(own.c), nullptr, own.c_row, own.c_column, 0, alpha, beta, own.m, own.n};
    return {{origin.row, origin.column, 0, (own.k + Tile::BK - 1) / Tile::BK, 0, 0, 0}, Tile::BK, 0,
            &table.groups[number].a, &table.groups[number].b, nullptr, outputs, static_cast<Scalar*>(own.d), own.d_row,
            own.d_column, true};
  };
  compute_tiles(dynamic, work_at);
}
