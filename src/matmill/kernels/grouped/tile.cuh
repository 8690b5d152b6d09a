// One tile of a group's D, by the pipelines of single products: gemm/simt.cuh on the FMA units, hgemm/mma.cuh on tensor
// cores.
#pragma once

#include "kernels/gemm/simt.cuh"
#include "kernels/grouped/groups.cuh"
#include "kernels/hgemm/mma.cuh"

namespace matmill {

template <class Constants, bool FMA>
struct GroupedPipeline {
  using Tile = SimtGemm<Scalar, Constants>;
  using Stage = Scalar;

  static __device__ __forceinline__ void store(const Tile& tile, unsigned char*, const Group& g, Origin origin,
                                               Acc alpha, Acc beta) {
    tile.template store<Constants::D_VEC>(static_cast<const Acc*>(g.c), g.c_row, g.c_column, static_cast<Acc*>(g.d),
                                          g.d_row, g.d_column, origin, g.m, g.n, alpha, beta);
  }
};

template <class Constants>
struct GroupedPipeline<Constants, false> {
  using Tile = MmaGemm<Scalar, Constants>;
  using Stage = unsigned char;

  static __device__ __forceinline__ void store(const Tile& tile, unsigned char* shared, const Group& g, Origin origin,
                                               Acc alpha, Acc beta) {
    tile.store(shared, static_cast<const Scalar*>(g.c), g.c_row, g.c_column, static_cast<Scalar*>(g.d), g.d_row,
               g.d_column, origin, g.m, g.n, alpha, beta);
  }
};

using Pipeline = GroupedPipeline<Config, Config::FMA != 0>;

// Computes the index-th tile of a group: D = alpha * A * B + beta * C. `shared` holds the pipeline's stages.
__device__ __forceinline__ void compute_tile(unsigned char* shared, const Group& g, int index, Acc alpha, Acc beta) {
  using Tile = Pipeline::Tile;
  const Origin origin = tile_origin<Tile, Config::GROUP_M>(index, g.m, g.n);
  const Scalar* const A = static_cast<const Scalar*>(g.a) + origin.row * g.a_row;
  const Scalar* const B = static_cast<const Scalar*>(g.b) + origin.column * g.b_column;
  Tile tile;
  tile.run(reinterpret_cast<Pipeline::Stage*>(shared), Tile::CopyA(A, g.a_row, g.a_column, g.m - origin.row, g.k),
           Tile::CopyB(B, g.b_column, g.b_row, g.n - origin.column, g.k), g.k);
  Pipeline::store(tile, shared, g, origin, alpha, beta);
}

}  // namespace matmill
