// The sums of a block's threads, of which S neighbours at a time hold different outputs of the same k's.
//
//   registers own[OUT] ─▶ shuffles among the 32 / S lanes that hold the same outputs ─▶ shared [OUT][groups][S] ─▶
//   barrier ─▶ one thread per output adds the groups in order
//
// S is a power of two that divides BS. Lanes store neighbouring words, and one column more than they need spreads
// the words that a warp reads, of many outputs, over the banks: 2 wavefronts per read of 16 x 16 outputs in float32
// instead of 16, counted by the emulator.
#pragma once

namespace matmill {

template <class Acc, int BS, int S, int OUT>
struct BlockSum {
  static constexpr int LANES = S < 32 ? S : 32;   // lanes of a warp that hold different outputs
  static constexpr int COLUMNS = BS / 32 * LANES;
  static constexpr int GROUPS = COLUMNS / S;      // threads, or warps after the shuffles, that hold the same outputs
  static_assert(S > 0 && (S & (S - 1)) == 0 && BS % 32 == 0 && BS % S == 0, "S is a power of two that divides BS");
  static_assert(sizeof(Acc) * OUT * (COLUMNS + 1) <= 48 * 1024, "the host refuses larger sums");

  Acc shared[OUT][COLUMNS + 1];

  // Stores this thread's share; every thread of the block must call it, and then pass a barrier.
  __device__ __forceinline__ void put(const Acc (&own)[OUT]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < OUT; ++i) {
      Acc sum = own[i];
#pragma unroll
      for (int apart = 16; apart >= LANES; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      if (lane < LANES) shared[i][threadIdx.x / 32 * LANES + lane] = sum;
    }
  }

  // The block's sum of output `i` of the threads numbered `s` among S.
  __device__ __forceinline__ Acc total(int s, int i) const {
    Acc sum = 0;
    for (int group = 0; group < GROUPS; ++group) sum += shared[i][group * S + s];
    return sum;
  }
};

}  // namespace matmill
