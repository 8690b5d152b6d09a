// The producer of a warp-specialised product: one thread, which loads the stages of all tiles of its block by TMA. Where A
// goes through registers, all threads of the producer's warp group copy it, and one loads B.
#pragma once

#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/tma.cuh"
#include "kernels/wgmma/schedule.cuh"
#include "kernels/wgmma/tile.cuh"

namespace matmill {

// Loads one operand's EXTENT rows or columns of a k-step. Where blocks of a cluster share the operand, each loads half of
// it for both: half of the rows, or of an MN-major operand's k. The barrier gets the bytes in each block.
template <int EXTENT, bool K_MAJOR, bool IS_SHARED, class Tile>
__device__ __forceinline__ void load_operand(unsigned to, const TensorMap* map, unsigned barrier, int k, int outer,
                                             int batch, int rank) {
  constexpr unsigned short BOTH = 3;
  if constexpr (K_MAJOR) {
    if constexpr (IS_SHARED) {
      const int half = rank * (EXTENT / 2);
      ptx::tma_load_multicast_3d(to + half * Tile::SPAN, map, barrier, k, outer + half, batch, BOTH);
    } else {
      ptx::tma_load_3d(to, map, barrier, k, outer, batch);
    }
  } else {
#pragma unroll
    for (int box = 0; box < EXTENT / 64; ++box) {
      if constexpr (IS_SHARED) {
        const int half = rank * 32;
        ptx::tma_load_multicast_3d(to + box * Tile::BOX + half * Tile::SPAN, map, barrier, outer + 64 * box, k + half,
                                   batch, BOTH);
      } else {
        ptx::tma_load_3d(to + box * Tile::BOX, map, barrier, outer + 64 * box, k, batch);
      }
    }
  }
}

// Loads the stages of a work tile: B by TMA, where this thread is the `leader`, and A by load_a(stage, full barrier, k,
// piece). Batches whose B is one count as 0. Of matrices in pieces a k-step has a stage for each.
template <class Tile, class LoadA>
__device__ __forceinline__ void load_work(const WorkTile& work, PipelineSlot<Tile::STAGES>& slot,
                                          const WgmmaShared<Tile>& shared, const TensorMap* b, bool b_batched, int rank,
                                          bool leader, LoadA load_a) {
  constexpr int BYTES = Tile::B_BYTES + (Tile::A_IN_REGISTERS ? 0 : Tile::A_BYTES);
  const int batch = b_batched ? work.batch * Tile::PIECES : 0;
  for (int step = 0; step < work.steps; ++step) {
#pragma unroll
    for (int piece = 0; piece < Tile::PIECES; ++piece) {
      const unsigned to = shared.stages + slot.stage * Tile::STAGE_BYTES, full = shared.full + 8 * slot.stage;
      const int k = (work.first + step) * Tile::BK;
      ptx::mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);
      if (leader) ptx::mbarrier_arrive_expect_tx(full, BYTES);
      load_a(to, full, k, piece);
      if (leader) {
        load_operand<Tile::BN, Tile::B_K_MAJOR, (Tile::CLUSTER_M > 1), Tile>(to + Tile::A_BYTES, b, full, k, work.column,
                                                                             batch + piece, rank);
      }
      slot.next();
    }
  }
}

}  // namespace matmill
