// Products of groups of 16-bit elements on Hopper's tensor cores: a persistent, warp-specialised kernel with the tiles,
// stages and barriers of wgmma/kernel.cuh, without clusters. Blocks have tiles of all groups one after another.
//
// TMA loads rows, or terms of k, from wherever a group starts. A tile's last rows may be another group's: they are not
// stored. A stage's last terms may be another group's: both operands' are zeroed in shared memory before they are
// multiplied, as one alone may be infinite or NaN.
#pragma once

#include "matmill/ptx/barrier.cuh"
#include "matmill/ptx/dependent_launch.cuh"
#include "matmill/ptx/setmaxnreg.cuh"
#include "matmill/ptx/st_shared.cuh"
#include "kernels/grouped/groups.cuh"
#include "kernels/wgmma/epilogue.cuh"
#include "kernels/wgmma/mainloop.cuh"
#include "kernels/wgmma/producer.cuh"

using Tile = matmill::WgmmaTile<Scalar, Config>;
using Outputs = matmill::GemmResult<Scalar, Scalar, Config>;

static_assert(Tile::CLUSTER == 1 && !Tile::PINGPONG && !Tile::A_IN_REGISTERS, "tiles of one block, by TMA");

// A tile of a group and where its operands are. `outputs` has the ends of the group's rows and columns, `last_terms` are
// the terms of k in the last stage, `b_matrix` the number of B in its map, `tile.batch` that of D. TMA stores D where it has
// a map, and nobody else's rows are in the tile. Without steps D is beta * C.
struct GroupWork {
  matmill::WorkTile tile;
  int last_terms, b_matrix;
  const matmill::TensorMap *a_map, *b_map, *d_map;
  Outputs outputs;
  Scalar* D;
  Index d_row, d_column;
  bool any;
};

// Zeroes the rows of a stage's boxes from `terms` on. All consumers call it.
__device__ __forceinline__ void zero_terms(unsigned stage, int terms) {
  const int vectors = (64 - terms) * Tile::SPAN / 16;  // of a box
  for (int i = threadIdx.x - 128; i < Tile::STAGE_BYTES / Tile::BOX * vectors; i += 128 * Tile::CONSUMERS) {
    const unsigned to = stage + i / vectors * Tile::BOX + terms * Tile::SPAN + i % vectors * 16;
    matmill::ptx::st_shared_v4(to, float4{0, 0, 0, 0});
  }
  matmill::ptx::fence_proxy_async_shared();
  matmill::ptx::barrier_sync<128 * Tile::CONSUMERS>(4);
}

// Stores a tile that has no terms, element by element. All consumers call it.
__device__ __forceinline__ void store_without_terms(const GroupWork& work) {
  const int rows = min(Tile::BM, work.outputs.m - work.tile.row);
#pragma unroll 1
  for (int i = threadIdx.x - 128; i < rows * Tile::BN; i += 128 * Tile::CONSUMERS) {
    const int row = work.tile.row + i / Tile::BN, column = work.tile.column + i % Tile::BN;
    if (column >= work.outputs.n) continue;
    work.D[row * work.d_row + column * work.d_column] = Scalar::rounded(work.outputs(0.0f, row, column, 0.0f));
  }
}

// Stores a warp group's sums through its part of the staging buffer.
__device__ __forceinline__ void store(const Tile::Sums& sums, const GroupWork& work, unsigned staging, int first_row,
                                      int barrier) {
  constexpr bool TRANSPOSED = Config::D_TRANSPOSED != 0;
  const int row = work.tile.row + first_row, column = work.tile.column;
  if constexpr (Config::D_TMA != 0) {
    if (Config::TERMS || work.tile.row + Tile::BM <= work.outputs.m) {
      matmill::store_staged<Tile, TRANSPOSED, true>(sums, work.outputs, staging, work.d_map, work.D, work.d_row, work.d_column,
                                                    row, column, work.tile.batch, barrier);
      return;
    }
    if (threadIdx.x % 128 == 0) matmill::ptx::bulk_wait_read<0>();  // what left the buffer before
  }
  matmill::store_staged<Tile, TRANSPOSED, false>(sums, work.outputs, staging, nullptr, work.D, work.d_row, work.d_column, row,
                                                 column, 0, barrier);
}

// Computes the tiles of a block. work_at(index) returns the index-th tile of all; it is called by whole warps.
template <class WorkAt>
__device__ __forceinline__ void compute_tiles(unsigned char* dynamic, const WorkAt& work_at) {
  using namespace matmill::ptx;
  const matmill::WgmmaShared<Tile> shared(dynamic);
  if (threadIdx.x == 32) {
    for (int s = 0; s < Tile::STAGES; ++s) {
      mbarrier_init(shared.full + 8 * s, 1);
      mbarrier_init(shared.empty + 8 * s, 4 * Tile::READERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  wait_then_trigger();

  matmill::PipelineSlot<Tile::STAGES> slot;
  const int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (role == 0) {
    if constexpr (Config::PRODUCER_REGISTERS != 0) setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
    if (threadIdx.x >= 32) return;
    const bool leader = threadIdx.x == 0;
    const matmill::Sharing alone{0, 0};
    int filled = 0;
    for (int index = blockIdx.x;; index += gridDim.x) {
      GroupWork work = work_at(index);
      if (!work.any) return;
      work.tile.batch = work.b_matrix;
      matmill::load_work<Tile>(work.tile, slot, filled, shared, work.b_map, true, 0, leader,
                               [&](unsigned stage, unsigned full, int k, int) {
                                 if (!leader) return;
                                 matmill::load_operand<Tile::BM, Tile::A_K_MAJOR, 1, 1, Tile>(
                                     stage, work.a_map, full, k, work.tile.row, 0, alone);
                               });
      __syncwarp();
    }
  }
  if constexpr (Config::CONSUMER_REGISTERS != 0) setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
  const int group = role - 1, first_row = group * Tile::ROWS;
  const unsigned staging = shared.staging + group * Tile::STAGING_BYTES;
  for (int index = blockIdx.x;; index += gridDim.x) {
    const GroupWork work = work_at(index);
    if (!work.any) break;
    if (work.tile.steps == 0) {
      store_without_terms(work);
      continue;
    }
    Tile::Sums sums;
    matmill::multiply(
        sums, slot, shared, work.tile.steps, first_row,
        [&](int stage) {
          if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty + 8 * stage);
        },
        [] {},
        [&](unsigned stage, int step) {
          if (Config::TERMS && work.last_terms < Tile::BK && step == work.tile.steps - 1) zero_terms(stage, work.last_terms);
        });
    store(sums, work, staging, first_row, 1 + group);
  }
  if (Config::D_TMA && threadIdx.x % 128 == 0) bulk_wait_read<0>();  // shared memory outlives the stores' reads
}
