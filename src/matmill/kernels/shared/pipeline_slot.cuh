// Where a thread is in a pipeline of stages with full and empty mbarriers.
#pragma once

namespace matmill {

// The stage of a k-step, and the parity of its full barrier's phase. The wait for its empty barrier has the other one.
// Steps are counted through all tiles of a block.
template <int STAGES>
struct PipelineSlot {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void skip(int steps) {
    stage += steps;
    parity ^= stage / STAGES % 2;
    stage %= STAGES;
  }
};

}  // namespace matmill
