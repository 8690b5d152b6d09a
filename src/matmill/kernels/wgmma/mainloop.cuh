// The main loop of a consumer warp group: wgmma on the stages of one tile.
#pragma once

#include "matmill/ptx/mbarrier.cuh"
#include "kernels/pieces/piece.cuh"
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
      : WgmmaDescriptors(stage, stage, first_row) {}

  // A of one stage and B of another.
  __device__ __forceinline__ WgmmaDescriptors(unsigned a_stage, unsigned b_stage, int first_row)
      : a(Tile::A_K_MAJOR ? ptx::k_major_descriptor<Tile::SPAN>(a_stage + first_row * Tile::SPAN)
                          : ptx::mn_major_descriptor<Tile::SPAN>(a_stage + first_row * Tile::SPAN, Tile::BOX)),
        b(Tile::B_K_MAJOR ? ptx::k_major_descriptor<Tile::SPAN>(b_stage + Tile::A_BYTES)
                          : ptx::mn_major_descriptor<Tile::SPAN>(b_stage + Tile::A_BYTES, Tile::BOX)) {}

  // 64 rows are as far apart in either layout.
  __device__ __forceinline__ void multiply(typename Tile::Sums& sums, typename Tile::OtherSums& others,
                                           bool accumulate) const {
#pragma unroll
    for (int s = 0; s < Tile::STEPS; ++s) {
      const int chain = s % Tile::CHAINS;
#pragma unroll
      for (int i = 0; i < Tile::ROW_TILES; ++i) {
        ptx::wgmma<typename Tile::Operand, !Tile::A_K_MAJOR, !Tile::B_K_MAJOR>(
            chain == 0 ? sums[i] : others[chain - 1][i], ptx::later(a, i * Tile::BOX + s * NEXT_A),
            ptx::later(b, s * NEXT_B), accumulate || s >= Tile::CHAINS);
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

// totals += scale * sums, on the FMA units.
template <class Tile>
__device__ __forceinline__ void promote(typename Tile::Sums& totals, const typename Tile::Sums& sums, float scale) {
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::BN / 2; ++j) totals[i][j] = fmaf(sums[i][j], scale, totals[i][j]);
  }
}

// Multiplies `steps` stages from `slot` on, one group of products in flight: release(stage), which tells the producer that
// this warp group has read a stage, comes a step late. issued() is called when the last product has been issued,
// arrived(address of the stage, step) when a stage has come.
template <class Tile, class Release, class Issued, class Arrived>
__device__ __forceinline__ void multiply(typename Tile::Sums& sums, PipelineSlot<Tile::STAGES>& slot,
                                         const WgmmaShared<Tile>& shared, int steps, int first_row, Release release,
                                         Issued issued, Arrived arrived) {
  typename Tile::OtherSums others;
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    const int stage = __shfl_sync(0xffffffffu, slot.stage, 0);
    const WgmmaDescriptors<Tile> operands(shared.stages + stage * Tile::STAGE_BYTES, first_row);
    ptx::mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);
    arrived(shared.stages + slot.stage * Tile::STAGE_BYTES, step);
    ptx::wgmma_fence();
    operands.multiply(sums, others, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) release(before);
    before = slot.stage;
    slot.next();
  }
  issued();
  ptx::wgmma_wait<0>();
  pin<Tile>(sums);
#pragma unroll
  for (int chain = 0; chain < Tile::CHAINS - 1; ++chain) {
    pin<Tile>(others[chain]);
    promote<Tile>(sums, others[chain], 1);
  }
  release(before);
}

template <class Tile, class Release, class Issued>
__device__ __forceinline__ void multiply(typename Tile::Sums& sums, PipelineSlot<Tile::STAGES>& slot,
                                         const WgmmaShared<Tile>& shared, int steps, int first_row, Release release,
                                         Issued issued) {
  multiply(sums, slot, shared, steps, first_row, release, issued, [](unsigned, int) {});
}

template <class Tile>
__device__ __forceinline__ void clear(typename Tile::Sums& sums) {
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::BN / 2; ++j) sums[i][j] = 0;
  }
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
template <class Tile, class Release, class Issued>
__device__ __forceinline__ void multiply_promoted(typename Tile::Sums& totals, PipelineSlot<Tile::STAGES>& slot,
                                                  const WgmmaShared<Tile>& shared, int steps, int first_row,
                                                  Release release, Issued issued) {
  clear<Tile>(totals);
  for (int step = 0; step < steps; step += Tile::PROMOTED) {
    typename Tile::Sums sums;
    const int count = min(Tile::PROMOTED, steps - step);
    multiply(sums, slot, shared, count, first_row, release, [&] {
      if (step + count == steps) issued();
    });
    promote<Tile>(totals, sums, 1);
  }
}

// The same for matrices in pieces. Of each k-step one stage has the higher pieces of A and B and the next one the lower
// pieces. For PROMOTED steps the products of a lower and a higher piece come first, as they are small, and their sum is
// scaled back; then those of two higher pieces, whose stages wait meanwhile.
template <class Tile, class Release, class Issued>
__device__ __forceinline__ void multiply_pieces(typename Tile::Sums& totals, PipelineSlot<Tile::STAGES>& slot,
                                                const WgmmaShared<Tile>& shared, int steps, int first_row,
                                                Release release, Issued issued) {
  using Slot = PipelineSlot<Tile::STAGES>;
  const auto full = [&](int stage, unsigned parity) {
    ptx::mbarrier_wait(shared.full + 8 * stage, parity);
    return shared.stages + stage * Tile::STAGE_BYTES;
  };
  clear<Tile>(totals);
  for (int step = 0; step < steps; step += Tile::PROMOTED) {
    const int count = min(Tile::PROMOTED, steps - step);
    const Slot first = slot;
    // One loop for both kinds of products: a second copy of its wgmma would have the sums in other registers, and spill.
#pragma unroll 1
    for (int small = 1; small >= 0; --small) {
      typename Tile::Sums sums;
      typename Tile::OtherSums none;
      Slot high = first;
      int before = 0;
      for (int i = 0; i < (1 + small) * count; ++i) {
        Slot low = high;
        low.next();
        const bool a_low = small && i % 2 == 0, b_low = small && i % 2 == 1, step_ends = !a_low;
        const unsigned a = full(a_low ? low.stage : high.stage, a_low ? low.parity : high.parity);
        const unsigned b = full(b_low ? low.stage : high.stage, b_low ? low.parity : high.parity);
        const WgmmaDescriptors<Tile> operands(a, b, first_row);
        ptx::wgmma_fence();
        operands.multiply(sums, none, i > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (i > 0 && (a_low || !small)) release(before);  // the step before has been read
        if (!step_ends) continue;
        before = small ? low.stage : high.stage;
        high = low;
        high.next();
      }
      slot = high;
      if (!small && step + count == steps) issued();
      ptx::wgmma_wait<0>();
      pin<Tile>(sums);
      release(before);
      promote<Tile>(totals, sums, small ? 1 / LOW_SCALE : 1);
    }
  }
}

}  // namespace matmill
