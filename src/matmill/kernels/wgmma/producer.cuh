// The producer of a warp-specialised product: one thread, which loads the stages of all tiles of its block by TMA. Where A
// goes through registers, all threads of the producer's warp group copy it, and one loads B.
#pragma once

#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/tma.cuh"
#include "kernels/wgmma/schedule.cuh"
#include "kernels/wgmma/tile.cuh"

namespace matmill {

// Blocks of a cluster that share an operand: the `part` of it that this one loads for all, and the bits of their ranks.
struct Sharing {
  int part;
  unsigned short blocks;
};

// A is shared along a row of the cluster, B along a column.
template <class Tile>
__device__ __forceinline__ Sharing sharing_a(int rank) {
  const int row = rank / Tile::CLUSTER_N;
  return {rank % Tile::CLUSTER_N, static_cast<unsigned short>(((1 << Tile::CLUSTER_N) - 1) << row * Tile::CLUSTER_N)};
}

template <class Tile>
__device__ __forceinline__ Sharing sharing_b(int rank) {
  constexpr unsigned COLUMN = ((1ull << Tile::CLUSTER) - 1) / ((1 << Tile::CLUSTER_N) - 1);  // a bit in each row
  return {rank / Tile::CLUSTER_N, static_cast<unsigned short>(COLUMN << rank % Tile::CLUSTER_N)};
}

// Loads one operand's EXTENT rows or columns of a k-step. Where SHARED_BY blocks of a cluster share the operand, each of the
// first PARTS loads a part of it for all: some of the rows, or of an MN-major operand's k. The barrier gets the bytes in
// each block.
template <int EXTENT, bool K_MAJOR, int SHARED_BY, int PARTS, class Tile>
__device__ __forceinline__ void load_operand(unsigned to, const TensorMap* map, unsigned barrier, int k, int outer,
                                             int batch, const Sharing& sharing) {
  if (PARTS < SHARED_BY && sharing.part >= PARTS) return;
  if constexpr (K_MAJOR) {
    if constexpr (SHARED_BY > 1) {
      const int first = sharing.part * (EXTENT / PARTS);
      ptx::tma_load_multicast_3d(to + first * Tile::SPAN, map, barrier, k, outer + first, batch, sharing.blocks);
    } else {
      ptx::tma_load_3d(to, map, barrier, k, outer, batch);
    }
  } else {
#pragma unroll
    for (int box = 0; box < (EXTENT + 63) / 64; ++box) {
      if constexpr (SHARED_BY > 1) {
        const int first = sharing.part * (64 / PARTS);
        ptx::tma_load_multicast_3d(to + box * Tile::BOX + first * Tile::SPAN, map, barrier, outer + 64 * box, k + first,
                                   batch, sharing.blocks);
      } else {
        ptx::tma_load_3d(to + box * Tile::BOX, map, barrier, outer + 64 * box, k, batch);
      }
    }
  }
}

// Loads the stages of a work tile: B by TMA, where this thread is the `leader`, and A by load_a(stage, full barrier, k,
// piece). No stage is waited for until all have been `filled` once. Batches whose B is one count as 0. Of matrices in
// pieces a k-step has a stage for each.
template <class Tile, class LoadA>
__device__ __forceinline__ void load_work(const WorkTile& work, PipelineSlot<Tile::STAGES>& slot, int& filled,
                                          const WgmmaShared<Tile>& shared, const TensorMap* b, bool b_batched, int rank,
                                          bool leader, LoadA load_a) {
  constexpr int BYTES = Tile::B_BYTES + (Tile::A_IN_REGISTERS ? 0 : Tile::A_BYTES);
  const int batch = b_batched ? work.batch * Tile::PIECES : 0;
  const Sharing sharing = sharing_b<Tile>(rank);
  for (int step = 0; step < work.steps; ++step) {
#pragma unroll
    for (int piece = 0; piece < Tile::PIECES; ++piece) {
      const unsigned to = shared.stages + slot.stage * Tile::STAGE_BYTES, full = shared.full + 8 * slot.stage;
      const int k = work.origin_k + (work.first + step) * Tile::BK;
      if (filled != 0) ptx::mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);
      if (leader) ptx::mbarrier_arrive_expect_tx(full, BYTES);
      load_a(to, full, k, piece);
      if (leader) {
        load_operand<Tile::BN, Tile::B_K_MAJOR, Tile::CLUSTER_M, Tile::B_PARTS, Tile>(
            to + Tile::A_BYTES, b, full, k, work.column, batch + piece, sharing);
      }
      slot.next();
      filled |= int(slot.stage == 0);
    }
  }
}

}  // namespace matmill
