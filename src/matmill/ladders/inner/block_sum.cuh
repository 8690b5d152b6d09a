// Block reduction for the ladder's kernels: S adjacent threads hold different outputs of the same k.
//
//   registers own[OUT] ─▶ shuffles among the 32 / S lanes that hold the same outputs ─▶ shared [OUT][groups][S] ─▶
//   barrier ─▶ one thread per output adds the groups in order
//
// S is a power of two that divides BS. Lanes store adjacent words. One column of padding spreads a warp's reads, of
// many outputs, over the banks: reads of 16 x 16 outputs in float32 take 2 wavefronts instead of 16 (counted by the
// emulator).
#pragma once

namespace matmill {

template <class Acc, int BS, int S, int OUT>
struct BlockSum {
  static constexpr int LANES = S < 32 ? S : 32;  // lanes of a warp that hold different outputs
  static constexpr int COLUMNS = BS / 32 * LANES;
  static constexpr int GROUPS = COLUMNS / S;  // columns that hold the same output
  static_assert(S > 0 && (S & (S - 1)) == 0 && BS % 32 == 0 && BS % S == 0, "S is a power of two that divides BS");
  static_assert(sizeof(Acc) * OUT * (COLUMNS + 1) <= 48 * 1024,
                "static shared memory is at most 48 KB: the host refuses more");

  Acc shared[OUT][COLUMNS + 1];

  // Stores this thread's sums. Every thread of the block must call it, and then pass a barrier.
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

  // The block's sum of output `i` of thread `s` of S.
  __device__ __forceinline__ Acc total(int s, int i) const {
    Acc sum = 0;
    for (int group = 0; group < GROUPS; ++group) sum += shared[i][group * S + s];
    return sum;
  }
};

}  // namespace matmill
