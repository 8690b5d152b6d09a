// The producer of a warp-specialised product: one thread, which loads the stages of all tiles of its block by TMA. Where A
// goes through registers, all threads of the producer's warp group copy it, and one loads B.
#pragma once

#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/tma.cuh"
#include "kernels/wgmma/schedule.cuh"
#include "kernels/wgmma/tile.cuh"
#include "kernels/wgmma/unaligned.cuh"

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

// Batches whose matrices are one count as 0.
template <class Tile>
__device__ __forceinline__ void load_work(const WorkTile& work, PipelineSlot<Tile::STAGES>& slot,
                                          const WgmmaShared<Tile>& shared, const TensorMap* a, const TensorMap* b,
                                          bool a_batched, bool b_batched, int rank) {
  const int a_batch = a_batched ? work.batch : 0, b_batch = b_batched ? work.batch : 0;
  for (int step = 0; step < work.steps; ++step) {
    const unsigned to = shared.stages + slot.stage * Tile::STAGE_BYTES, full = shared.full + 8 * slot.stage;
    const int k = (work.first + step) * Tile::BK;
    ptx::mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, Tile::STAGE_BYTES);
    load_operand<Tile::BM, Tile::A_K_MAJOR, (Tile::CLUSTER_N > 1), Tile>(to, a, full, k, work.row, a_batch, rank);
    load_operand<Tile::BN, Tile::B_K_MAJOR, (Tile::CLUSTER_M > 1), Tile>(to + Tile::A_BYTES, b, full, k, work.column,
                                                                         b_batch, rank);
    slot.next();
  }
}

// The same for an A whose rows start anywhere. All threads of the producer's warp group call this; the `leader` loads B.
template <class Tile>
__device__ __forceinline__ void load_unaligned_work(const WorkTile& work, PipelineSlot<Tile::STAGES>& slot,
                                                    const WgmmaShared<Tile>& shared, const UnalignedRuns& a,
                                                    const TensorMap* b, bool b_batched, int rank, bool leader) {
  UnalignedCopies<Tile> copies(a, work.row, work.first * Tile::BK);
  for (int step = 0; step < work.steps; ++step) {
    const unsigned to = shared.stages + slot.stage * Tile::STAGE_BYTES, full = shared.full + 8 * slot.stage;
    const int k = (work.first + step) * Tile::BK;
    ptx::mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(full, Tile::B_BYTES);
      load_operand<Tile::BN, Tile::B_K_MAJOR, (Tile::CLUSTER_M > 1), Tile>(to + Tile::A_BYTES, b, full, k, work.column,
                                                                           b_batched ? work.batch : 0, rank);
    }
    copies.load(to);
    ptx::cp_async_mbarrier_arrive(full);
    slot.next();
  }
}

}  // namespace matmill
