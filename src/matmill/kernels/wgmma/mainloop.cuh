// The main loop of a consumer warp group: wgmma on the stages of one tile.
#pragma once

#include "matmill/ptx/mbarrier.cuh"
#include "kernels/wgmma/tile.cuh"
#include "kernels/wgmma/unaligned.cuh"

namespace matmill {

// Descriptors of a warp group's operands in a stage.
template <class Tile>
struct WgmmaDescriptors {
  static constexpr int NEXT_A = Tile::A_K_MAJOR ? 32 : 16 * Tile::SPAN, NEXT_B = Tile::B_K_MAJOR ? 32 : 16 * Tile::SPAN;
  unsigned long long a, b;

  // `first_row` is the warp group's first row of the tile.
  __device__ __forceinline__ WgmmaDescriptors(unsigned stage, int first_row)
      : a(Tile::A_K_MAJOR ? ptx::k_major_descriptor<Tile::SPAN>(stage + first_row * Tile::SPAN)
                          : ptx::mn_major_descriptor<Tile::SPAN>(stage + first_row * Tile::SPAN, Tile::BOX)),
        b(Tile::B_K_MAJOR ? ptx::k_major_descriptor<Tile::SPAN>(stage + Tile::A_BYTES)
                          : ptx::mn_major_descriptor<Tile::SPAN>(stage + Tile::A_BYTES, Tile::BOX)) {}

  // 64 rows are as far apart in either layout.
  __device__ __forceinline__ void multiply(typename Tile::Sums& sums, bool accumulate) const {
#pragma unroll
    for (int s = 0; s < Tile::STEPS; ++s) {
#pragma unroll
      for (int i = 0; i < Tile::ROW_TILES; ++i) {
        ptx::wgmma<typename Tile::Operand, !Tile::A_K_MAJOR, !Tile::B_K_MAJOR>(
            sums[i], ptx::later(a, i * Tile::BOX + s * NEXT_A), ptx::later(b, s * NEXT_B), accumulate || s > 0);
      }
    }
  }
};

// The same with A's fragments in registers.
template <class Tile>
__device__ __forceinline__ void multiply_fragments(typename Tile::Sums& sums,
                                                   const unsigned (&fragments)[Tile::STEPS][4], unsigned stage,
                                                   bool accumulate) {
  const WgmmaDescriptors<Tile> operands(stage, 0);
#pragma unroll
  for (int s = 0; s < Tile::STEPS; ++s) {
    ptx::wgmma<typename Tile::Operand, false, !Tile::B_K_MAJOR>(
        sums[0], fragments[s], ptx::later(operands.b, s * WgmmaDescriptors<Tile>::NEXT_B), accumulate || s > 0);
  }
}

template <class Tile>
__device__ __forceinline__ void pin(typename Tile::Sums& sums) {
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES; ++i) ptx::wgmma_pin(sums[i]);
}

// Multiplies `steps` stages from `slot` on, one group of products in flight: release(stage), which tells the producer that
// this warp group has read a stage, comes a step late. issued() is called when the last product has been issued.
template <class Tile, class Release, class Issued>
__device__ __forceinline__ void multiply(typename Tile::Sums& sums, PipelineSlot<Tile::STAGES>& slot,
                                         const WgmmaShared<Tile>& shared, int steps, int first_row, Release release,
                                         Issued issued) {
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    const WgmmaDescriptors<Tile> operands(shared.stages + slot.stage * Tile::STAGE_BYTES, first_row);
    ptx::mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);
    ptx::wgmma_fence();
    operands.multiply(sums, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) release(before);
    before = slot.stage;
    slot.next();
  }
  issued();
  ptx::wgmma_wait<0>();
  pin<Tile>(sums);
  release(before);
}

// The same for an A whose rows start anywhere. Fragments of a step are loaded while the products of the step before are
// computed, from other registers: two steps are one turn of the loop.
template <class Tile, class Release, class Issued>
__device__ __forceinline__ void multiply_unaligned(typename Tile::Sums& sums, PipelineSlot<Tile::STAGES>& slot,
                                                   const WgmmaShared<Tile>& shared, int steps,
                                                   const UnalignedFragments<Tile>& a, Release release, Issued issued) {
  int before = 0;
  const auto multiply_step = [&](unsigned (&fragments)[Tile::STEPS][4], int step) {
    const unsigned stage = shared.stages + slot.stage * Tile::STAGE_BYTES;
    ptx::mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);
    a.load(fragments, stage);
    ptx::wgmma_fence();
    multiply_fragments<Tile>(sums, fragments, stage, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) release(before);
    before = slot.stage;
    slot.next();
  };
  for (int step = 0;;) {
    unsigned even[Tile::STEPS][4], odd[Tile::STEPS][4];
    multiply_step(even, step);
    if (++step == steps) break;
    multiply_step(odd, step);
    if (++step == steps) break;
  }
  issued();
  ptx::wgmma_wait<0>();
  pin<Tile>(sums);
  release(before);
}

// As multiply(), with the sums of each PROMOTED steps added to separate float32 sums. Tensor cores truncate where they add, so
// errors grow with the terms of one sum; additions on the FMA units round to nearest.
template <class Tile, int PROMOTED, class Release, class Issued>
__device__ __forceinline__ void multiply_promoted(typename Tile::Sums& totals, PipelineSlot<Tile::STAGES>& slot,
                                                  const WgmmaShared<Tile>& shared, int steps, int first_row,
                                                  Release release, Issued issued) {
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::BN / 2; ++j) totals[i][j] = 0;
  }
  for (int step = 0; step < steps; step += PROMOTED) {
    typename Tile::Sums sums;
    const int count = min(PROMOTED, steps - step);
    PipelineSlot<Tile::STAGES> reading = slot;
    for (int s = 0; s < count; ++s) {
      const WgmmaDescriptors<Tile> operands(shared.stages + slot.stage * Tile::STAGE_BYTES, first_row);
      ptx::mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);
      ptx::wgmma_fence();
      operands.multiply(sums, s > 0);
      ptx::wgmma_commit();
      slot.next();
    }
    if (step + count == steps) issued();
    ptx::wgmma_wait<0>();
    pin<Tile>(sums);
    for (int s = 0; s < count; ++s, reading.next()) release(reading.stage);
#pragma unroll
    for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::BN / 2; ++j) totals[i][j] += sums[i][j];
    }
  }
}

}  // namespace matmill
