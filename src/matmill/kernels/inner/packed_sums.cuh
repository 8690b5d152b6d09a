// Coalesced stores of a block's partial sums, row by row.
//
//   the main loop's sums, in any thread order ─▶ shared [M][PITCH] ─▶ barrier ─▶ memory [M][N]
//
// A lane's mma accumulators belong to many rows, and a lane that loads adjacent columns holds adjacent outputs: a
// warp's direct store would touch 8 to 32 sectors for 128 bytes. With this PITCH at most two lanes share a bank, in
// either order. On an H200 this writes 128 x 128 outputs of 132 blocks 20 us faster where columns are contiguous and 4
// us faster where rows are; 100 x 100 outputs gain 13 and 4 us. A few outputs are written directly: that is faster than
// another barrier.
#pragma once

#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// The block has THREADS threads. Mainloop::sum uses SUM_BYTES of shared memory. With MMA, the host adds shared memory
// for the rows; otherwise they must fit what Mainloop has anyway.
template <class Mainloop, int THREADS, bool MMA>
struct PackedSums {
  static constexpr int M = Mainloop::M, N = Mainloop::N;
  static constexpr int PITCH = N + (41 - N % 32) % 32;  // 9 modulo the 32 banks
  static constexpr int ROWS_OFFSET = (Mainloop::SUM_BYTES + 15) / 16 * 16;
  static constexpr int NEEDED = ROWS_OFFSET + M * PITCH * int(sizeof(Acc));
  static constexpr bool MANY = M * N >= 1024 && (MMA || NEEDED <= Mainloop::SHARED_BYTES);
  static constexpr int BYTES = MANY ? NEEDED : 0;

  // Every thread of the block calls it.
  static __device__ __forceinline__ void write(Mainloop& mainloop, unsigned char* shared, Acc* to) {
    if constexpr (MANY) {
      Acc* const rows = reinterpret_cast<Acc*>(shared + ROWS_OFFSET);
      __syncthreads();  // the stages become the row buffer
      mainloop.sum(shared, [&](int row, int column, Acc sum) { rows[row * PITCH + column] = sum; });
      __syncthreads();
#pragma unroll 4
      for (int at = threadIdx.x; at < M * N; at += THREADS) to[at] = rows[at / N * PITCH + at % N];
    } else {
      mainloop.sum(shared, [&](int row, int column, Acc sum) { to[row * N + column] = sum; });
    }
  }
};

}  // namespace matmill
