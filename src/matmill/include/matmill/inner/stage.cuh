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

  // Copies lie in rows of INNER; rows are lines, k's, or (packed) the whole stage. A pass of all threads covers whole
  // rows, or a whole part of one; where it does neither (3 k-major lines of a matrix that is not packed), every copy's
  // place is divided out.
  static constexpr int INNER = MODE == ALONG_K ? BK / WIDTH : MODE == PACKED ? BK * LINES / WIDTH : LINES / WIDTH;
  static constexpr int ITEMS = (MODE == ALONG_K ? LINES : MODE == PACKED ? 1 : BK) * INNER;
  static constexpr int SLOTS = (ITEMS + THREADS - 1) / THREADS;
  static constexpr int ROWS = THREADS % INNER == 0 ? THREADS / INNER : 0;   // of a pass
  static constexpr int PARTS = MODE == PACKED || INNER % THREADS == 0 ? (INNER + THREADS - 1) / THREADS : 0;  // of a row
  static constexpr int UNROLL = SLOTS <= 16 ? SLOTS : 8;  // many copies at once would need many addresses at once
  static_assert(INNER > 0 && INNER * WIDTH * (ITEMS / INNER) == BK * LINES, "whole copies");

  const T* next;  // this thread's first element of the next stage
  long long row_stride, element_stride, stage_stride;
  int row, place;  // of this thread's first copy: row, and first element in it

  // `first`: the matrix at the first stage's first k; `step`: k's from one stage of this block to the next.
  __device__ __forceinline__ Stage(const T* first, long long line_stride, long long k_stride, long long step) {
    row = ROWS > 0 ? threadIdx.x / INNER : 0;
    place = (ROWS > 0 ? threadIdx.x % INNER : threadIdx.x) * WIDTH;
    row_stride = MODE == ALONG_K ? line_stride : k_stride;
    element_stride = MODE == STRIDED ? line_stride : 1;
    stage_stride = step * k_stride;
    next = first;
    if (ROWS > 0 || PARTS > 0) next += row * row_stride + place * element_stride;
  }

  // Issues this thread's copies of a stage of which `left` k's are there; `stage` is a shared-memory address.
  __device__ __forceinline__ void issue(unsigned stage, long long left) {
    if (left >= BK) {
      each<UNROLL>([&](int to, const T* from, int, int) {
        ptx::cp_async<WIDTH * int(sizeof(T))>(stage + to * int(sizeof(T)), from);
      });
    } else {
      each<1>([&](int to, const T* from, int row, int place) {
        const int there = MODE == ALONG_K  ? int(left) - place
                          : MODE == PACKED ? int(left) * LINES - place
                          : row < left     ? WIDTH
                                           : 0;
        const int count = there < 0 ? 0 : there < WIDTH ? there : WIDTH;
        ptx::cp_async_part<WIDTH * int(sizeof(T))>(stage + to * int(sizeof(T)), from, count * int(sizeof(T)));
      });
    }
    next += stage_stride;
  }

 private:
  // Calls copy(place in the stage, source, row, place in the row) for each of this thread's copies.
  template <int TIMES, class Copy>
  __device__ __forceinline__ void each(Copy copy) const {
    const T* from = next;
#pragma unroll TIMES
    for (int slot = 0; slot < SLOTS; ++slot) {
      if (ITEMS % THREADS == 0 || slot + 1 < SLOTS || threadIdx.x < ITEMS - slot * THREADS) {
        if constexpr (ROWS > 0) {
          const int r = row + slot * ROWS;
          copy(r * PITCH + place, from, r, place);
        } else if constexpr (PARTS > 0) {
          const int r = slot / PARTS, part = slot % PARTS * (THREADS * WIDTH);
          copy(r * PITCH + place + part, from + r * row_stride + part * element_stride, r, place + part);
        } else {
          const int item = threadIdx.x + slot * THREADS;
          const int r = item / INNER, p = item % INNER * WIDTH;
          copy(r * PITCH + p, from + r * row_stride + p * element_stride, r, p);
        }
      }
      if constexpr (ROWS > 0) from += ROWS * row_stride;
    }
  }
};

}  // namespace matmill
