// BK consecutive k of all lines of one matrix, copied to shared memory without passing through registers.
//
//   ALONG_K           line by line, PITCH = BK and 16 bytes more, so that 8 lines' 16-byte pieces of one k lie in
//                     different banks
//   PACKED, STRIDED   k by k, PITCH = LINES: the order in which a packed matrix lies in global memory
//
// Beyond the last k there are zeros. WIDTH elements are copied at a time; 2-byte elements only in pairs or more, since
// cp.async copies at least 4 bytes.
#pragma once

#include "matmill/inner/piece.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill {

template <class T, int LINES, int BK, int MODE, int WIDTH, int THREADS>
struct Stage {
  static constexpr int PITCH = MODE == ALONG_K ? BK + 16 / int(sizeof(T)) : LINES;
  static constexpr int ELEMENTS = MODE == ALONG_K ? LINES * PITCH : BK * LINES;
  static constexpr int BYTES = ELEMENTS * int(sizeof(T));
  static_assert(BYTES % 16 == 0, "what follows is aligned as well");

  // Copies lie in rows of INNER; rows are lines, k's, or (packed) the whole stage.
  static constexpr int INNER = MODE == ALONG_K ? BK / WIDTH : MODE == PACKED ? BK * LINES / WIDTH : LINES / WIDTH;
  static constexpr int ITEMS = (MODE == ALONG_K ? LINES : MODE == PACKED ? 1 : BK) * INNER;
  static constexpr int SLOTS = (ITEMS + THREADS - 1) / THREADS;
  static constexpr int UNROLL = SLOTS <= 8 ? SLOTS : 4;  // many copies at once would need many addresses at once
  static_assert(INNER > 0 && INNER * WIDTH * (ITEMS / INNER) == BK * LINES, "whole copies");

  // Issues this thread's copies of the stage that starts at k0; `stage` is a shared-memory address.
  static __device__ __forceinline__ void issue(unsigned stage, const T* p, long long k0, long long k,
                                               long long line_stride, long long k_stride) {
    const long long ahead = k - k0;  // terms from the stage's first k to the last one
    const int left = int(ahead < BK ? ahead : BK);
    const T* const from = p + k0 * k_stride;
#pragma unroll UNROLL
    for (int slot = 0; slot < SLOTS; ++slot) {
      const int item = threadIdx.x + slot * THREADS;
      const int row = item / INNER, place = item % INNER * WIDTH;
      if (ITEMS % THREADS == 0 || slot + 1 < SLOTS || item < ITEMS) {
        if constexpr (MODE == ALONG_K) {
          put(stage, row * PITCH + place, from + row * line_stride + place, left - place);
        } else if constexpr (MODE == PACKED) {
          put(stage, place, from + place, left * LINES - place);
        } else {
          put(stage, row * PITCH + place, from + row * k_stride + place * line_stride, row < left ? WIDTH : 0);
        }
      }
    }
  }

 private:
  // Copies as many of WIDTH elements as are `there`, and zeros for the others.
  static __device__ __forceinline__ void put(unsigned stage, int place, const T* from, int there) {
    const int count = there < 0 ? 0 : there < WIDTH ? there : WIDTH;
    ptx::cp_async_part<WIDTH * int(sizeof(T))>(stage + place * int(sizeof(T)), from, count * int(sizeof(T)));
  }
};

}  // namespace matmill
