// Block reduction: S consecutive threads hold OUT outputs each of a tile of D, and THREADS / S such groups hold the
// same tile.
//
//   S | 16    acc[OUT] ─▶ shuffles: lanes that hold the same outputs add and divide them
//             ─▶ shared [warp][OUT / (32 / S)][lane] ─▶ barrier ─▶ one thread per output adds the warps in order
//   ONE_PASS  acc[OUT] ─▶ shared [group][OUT][S] ─▶ barrier ─▶ one thread per output adds the groups in order
//   else      acc[OUT] ─▶ half of the groups pass their sums to the other half through shared memory, and so on
//             ─▶ the first group holds them
//
// Dividing the outputs among lanes takes OUT shuffles instead of OUT * log2(32 / S), and needs an S that divides 16.
// Any other S, with any number of groups, reduces in one pass where ROOM bytes of shared memory hold all sums, else by
// halves.
#pragma once

namespace matmill {

template <class Acc, int THREADS, int S, int OUT, int ROOM>
struct BlockReduce {
  static constexpr bool IN_WARP = 16 % S == 0;
  static constexpr int SHARERS = IN_WARP ? 32 / S : 1;  // lanes of a warp that hold the same outputs
  static constexpr int PADDED_OUT = (OUT + SHARERS - 1) / SHARERS * SHARERS;  // outputs, rounded up to whole lanes
  static constexpr int PER_LANE = PADDED_OUT / SHARERS;  // outputs that a lane has after the shuffles
  static constexpr int WARPS = THREADS / 32, GROUPS = THREADS / S;
  static constexpr bool ONE_PASS = GROUPS > 2 && GROUPS * S * OUT* int(sizeof(Acc)) <= ROOM;
  static constexpr int ELEMENTS = IN_WARP ? WARPS * 32 * PER_LANE : (ONE_PASS ? GROUPS : GROUPS / 2) * S * OUT;
  static constexpr int BYTES = ELEMENTS * int(sizeof(Acc));

  // Calls write(s, output, sum) once per output of each of the S threads, from any thread. `shared` holds BYTES, and no
  // thread may still be reading it.
  template <class Write>
  static __device__ __forceinline__ void run(Acc (&acc)[OUT], Acc* shared, Write write) {
    if constexpr (IN_WARP) {
      reduce_in_warps(acc, shared, write);
    } else if constexpr (ONE_PASS) {
      reduce_in_one_pass(acc, shared, write);
    } else {
      reduce_by_halves(acc, shared, write);
    }
  }

 private:
  template <class Write>
  static __device__ __forceinline__ void reduce_in_warps(Acc (&acc)[OUT], Acc* shared, Write write) {
    const int lane = threadIdx.x % 32;
    Acc x[PADDED_OUT];
#pragma unroll
    for (int i = 0; i < PADDED_OUT; ++i) x[i] = i < OUT ? acc[i < OUT ? i : 0] : Acc(0);
    butterfly<PADDED_OUT / 2, 16>(x, lane);
    // Lane-major: neither these writes nor the reads below have bank conflicts.
    Acc* const mine = shared + threadIdx.x / 32 * (32 * PER_LANE) + lane;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) mine[i * 32] = x[i];
    __syncthreads();
    for (int at = threadIdx.x; at < 32 * PER_LANE; at += THREADS) {
      Acc sum = 0;
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) sum += shared[warp * (32 * PER_LANE) + at];
      const int output = at % 32 / S * PER_LANE + at / 32;
      if (PADDED_OUT == OUT || output < OUT) write(at % S, output, sum);
    }
  }

  // Two lanes at DISTANCE hold the same outputs: one keeps their upper HALF, the other the lower. At the end lane l has
  // outputs l / S * PER_LANE and following.
  template <int HALF, int DISTANCE>
  static __device__ __forceinline__ void butterfly(Acc (&x)[PADDED_OUT], int lane) {
    if constexpr (DISTANCE >= S) {
      const bool upper = lane & DISTANCE;
#pragma unroll
      for (int i = 0; i < HALF; ++i) {
        const Acc keep = upper ? x[i + HALF] : x[i], give = upper ? x[i] : x[i + HALF];
        x[i] = keep + __shfl_xor_sync(0xffffffffu, give, DISTANCE);
      }
      butterfly<HALF / 2, DISTANCE / 2>(x, lane);
    }
  }

  template <class Write>
  static __device__ __forceinline__ void reduce_in_one_pass(const Acc (&acc)[OUT], Acc* shared, Write write) {
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
  static __device__ __forceinline__ void reduce_by_halves(Acc (&acc)[OUT], Acc* shared, Write write) {
    const int group = threadIdx.x / S, s = threadIdx.x % S;
#pragma unroll
    for (int left = GROUPS; left > 1; left -= left / 2) {
      const int half = left / 2, kept = left - half;  // groups that pass their sums on, and groups that keep sums
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
