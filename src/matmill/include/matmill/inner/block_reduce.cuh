// The sums of a block whose threads, S at a time, hold OUT outputs each of the same tile of D.
//
//   S | 16   acc[OUT] ─▶ shuffles: lanes that hold the same outputs add them and split them up ─▶ shared [warp][OUT / (32 / S)][lane]
//            ─▶ barrier ─▶ one thread per output adds the warps in turn
//   at once  acc[OUT] ─▶ shared [group][OUT][S] ─▶ barrier ─▶ one thread per output adds the groups in turn
//   else     acc[OUT] ─▶ half of the groups of S threads hands its sums to the other half through shared, and so on
//            ─▶ the first group holds them
//
// Splitting up takes OUT shuffles of one element instead of OUT * log2(32 / S). It is for an S that is a power of two; any
// other S, and any number of groups, add at once where ROOM bytes of shared memory hold all sums, else by halves.
#pragma once

namespace matmill {

template <class Acc, int THREADS, int S, int OUT, int ROOM>
struct TileSum {
  static constexpr bool IN_WARP = 16 % S == 0;
  static constexpr int ALIKE = IN_WARP ? 32 / S : 1;                      // lanes of a warp with the same outputs
  static constexpr int SPLIT = (OUT + ALIKE - 1) / ALIKE * ALIKE;         // outputs, in whole shares
  static constexpr int SHARE = SPLIT / ALIKE;                             // of one lane after the shuffles
  static constexpr int WARPS = THREADS / 32, GROUPS = THREADS / S;
  static constexpr bool AT_ONCE = GROUPS > 2 && GROUPS * S * OUT * int(sizeof(Acc)) <= ROOM;
  static constexpr int ELEMENTS = IN_WARP ? WARPS * 32 * SHARE : (AT_ONCE ? GROUPS : GROUPS / 2) * S * OUT;
  static constexpr int BYTES = ELEMENTS * int(sizeof(Acc));

  // Calls write(s, output, sum) once for every output of each of the S threads, from some thread. `shared` holds BYTES,
  // and no thread may still be reading it.
  template <class Write>
  static __device__ __forceinline__ void run(Acc (&acc)[OUT], Acc* shared, Write write) {
    if constexpr (IN_WARP) {
      across_lanes(acc, shared, write);
    } else if constexpr (AT_ONCE) {
      at_once(acc, shared, write);
    } else {
      across_groups(acc, shared, write);
    }
  }

 private:
  template <class Write>
  static __device__ __forceinline__ void across_lanes(Acc (&acc)[OUT], Acc* shared, Write write) {
    const int lane = threadIdx.x % 32;
    Acc x[SPLIT];
#pragma unroll
    for (int i = 0; i < SPLIT; ++i) x[i] = i < OUT ? acc[i < OUT ? i : 0] : Acc(0);
    split<SPLIT / 2, 16>(x, lane);
    // Lane by lane: neither the writes nor the reads below meet in a bank.
    Acc* const mine = shared + threadIdx.x / 32 * (32 * SHARE) + lane;
#pragma unroll
    for (int i = 0; i < SHARE; ++i) mine[i * 32] = x[i];
    __syncthreads();
    for (int at = threadIdx.x; at < 32 * SHARE; at += THREADS) {
      Acc sum = 0;
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) sum += shared[warp * (32 * SHARE) + at];
      const int output = at % 32 / S * SHARE + at / 32;
      if (SPLIT == OUT || output < OUT) write(at % S, output, sum);
    }
  }

  // Two lanes APART hold the same outputs: one keeps the upper HALF of them, the other the lower. In the end lane l has
  // share l / S.
  template <int HALF, int APART>
  static __device__ __forceinline__ void split(Acc (&x)[SPLIT], int lane) {
    if constexpr (APART >= S) {
      const bool upper = lane & APART;
#pragma unroll
      for (int i = 0; i < HALF; ++i) {
        const Acc keep = upper ? x[i + HALF] : x[i], give = upper ? x[i] : x[i + HALF];
        x[i] = keep + __shfl_xor_sync(0xffffffffu, give, APART);
      }
      split<HALF / 2, APART / 2>(x, lane);
    }
  }

  template <class Write>
  static __device__ __forceinline__ void at_once(const Acc (&acc)[OUT], Acc* shared, Write write) {
    Acc* const mine = shared + threadIdx.x / S * (OUT * S) + threadIdx.x % S;
#pragma unroll
    for (int i = 0; i < OUT; ++i) mine[i * S] = acc[i];
    __syncthreads();
    for (int at = threadIdx.x; at < OUT * S; at += THREADS) {
      Acc sum = 0;
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) sum += shared[group * (OUT * S) + at];
      write(at % S, at / S, sum);
    }
  }

  template <class Write>
  static __device__ __forceinline__ void across_groups(Acc (&acc)[OUT], Acc* shared, Write write) {
    const int group = threadIdx.x / S, s = threadIdx.x % S;
#pragma unroll
    for (int left = GROUPS; left > 1; left -= left / 2) {
      const int half = left / 2, kept = left - half;  // the groups that hand over, and those that then hold sums
      if (group >= kept && group < left) {
#pragma unroll
        for (int i = 0; i < OUT; ++i) shared[(i * half + group - kept) * S + s] = acc[i];
      }
      __syncthreads();
      if (group < half) {
#pragma unroll
        for (int i = 0; i < OUT; ++i) acc[i] += shared[(i * half + group) * S + s];
      }
      if (kept > 1) __syncthreads();
    }
    if (group == 0) {
#pragma unroll
      for (int i = 0; i < OUT; ++i) write(s, i, acc[i]);
    }
  }
};

}  // namespace matmill
