// BK consecutive k of all lines of one matrix, copied to shared memory without passing through registers.
//
//   ALONG_K           line by line, PITCH apart
//   SHIFTED           the same for lines that begin anywhere: whole vectors, from the aligned one in which the stage's
//                     first k lies, so that a line's k's begin misplaced() elements late; BK / WIDTH + 1 of them
//   PACKED            k by k, in the order in which the matrix lies in global memory
//   STRIDED           k by k, PITCH apart
//
// PITCH is chosen so that a warp's reads meet in few banks (matmill/kernels/inner/stages.py). Beyond the last k there
// are zeros. WIDTH elements are copied at a time; 2-byte elements only in pairs or more, since cp.async copies at least
// 4 bytes.
#pragma once

#include "matmill/inner/piece.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill {

constexpr int VECTOR_BYTES = 16;

// Elements of type T from the 16 aligned bytes in which p lies to p.
template <class T>
__device__ __forceinline__ int misplaced(const T* p) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(p) % VECTOR_BYTES) / int(sizeof(T));
}

template <class T, int LINES, int BK, int MODE, int WIDTH, int PITCH_, int THREADS, bool ALL>
struct Stage {
  static constexpr bool SHIFTS = MODE == SHIFTED;
  static constexpr bool LINEWISE = MODE == ALONG_K || SHIFTS;
  static constexpr int PITCH = PITCH_;
  static constexpr int ELEMENTS = (LINEWISE ? LINES : BK) * PITCH;
  static constexpr int BYTES = ELEMENTS * int(sizeof(T));
  static constexpr int NEEDED = SHIFTS ? BK + WIDTH : BK;  // k's that must be left for whole copies
  static_assert(BYTES % VECTOR_BYTES == 0, "what follows is aligned as well");
  static_assert(PITCH >= (LINEWISE ? NEEDED : LINES), "lines, or k's, do not overlap");
  static_assert(MODE != PACKED || PITCH == LINES, "a packed matrix is copied as it lies");
  static_assert(!SHIFTS || (WIDTH * sizeof(T) == VECTOR_BYTES && LINES <= THREADS), "a thread per line's last vector");

  // Copies lie in rows of INNER; rows are lines, k's, or (packed) the whole stage. A pass of all threads covers whole
  // rows, or a whole part of one; where it does neither (3 k-major lines of a matrix that is not packed), every copy's
  // place is divided out.
  static constexpr int INNER = LINEWISE ? BK / WIDTH : MODE == PACKED ? BK * LINES / WIDTH : LINES / WIDTH;
  static constexpr int ITEMS = (LINEWISE ? LINES : MODE == PACKED ? 1 : BK) * INNER;
  static constexpr int SLOTS = (ITEMS + THREADS - 1) / THREADS;
  // Of a pass. Threads beyond its last whole row copy nothing, where that takes no further pass.
  static constexpr int WHOLE = INNER <= THREADS ? THREADS / INNER : 1;
  static constexpr int ROWS = INNER <= THREADS && (ITEMS / INNER + WHOLE - 1) / WHOLE == SLOTS ? WHOLE : 0;
  static constexpr int PARTS = MODE == PACKED || INNER % THREADS == 0 ? (INNER + THREADS - 1) / THREADS : 0;  // of a row
  static constexpr int UNROLL = SLOTS <= 16 ? SLOTS : 8;  // many copies at once would need many addresses at once
  static_assert(INNER > 0 && INNER * WIDTH * (ITEMS / INNER) == BK * LINES, "whole copies");

  // This thread's number among the THREADS that copy: ALL of the block, or a part of it.
  static __device__ __forceinline__ unsigned thread() { return ALL ? threadIdx.x : threadIdx.x % THREADS; }

  const T* next;  // this thread's first element of the next stage
  const T* last;  // of SHIFTED lines: where in the next stage the last vector of this thread's line lies
  long long row_stride, element_stride, stage_stride;
  int row, place;  // of this thread's first copy: row, and first element in it

  // `first`: the matrix at the first stage's first k; `step`: k's from one stage of this block to the next.
  __device__ __forceinline__ Stage(const T* first, long long line_stride, long long k_stride, long long step) {
    row = ROWS > 0 ? thread() / INNER : 0;
    place = (ROWS > 0 ? thread() % INNER : thread()) * WIDTH;
    row_stride = LINEWISE ? line_stride : k_stride;
    element_stride = MODE == STRIDED ? line_stride : 1;
    stage_stride = step * k_stride;
    next = first;
    if (ROWS > 0 || PARTS > 0) next += row * row_stride + place * element_stride;
    last = first + (thread() < LINES ? thread() : 0) * line_stride + BK;
  }

  // Issues this thread's copies of a stage of which NEEDED k's are there; `stage` is a shared-memory address.
  __device__ __forceinline__ void issue_whole(unsigned stage) {
    each<UNROLL>([&](int to, const T* from, int, int) {
      ptx::cp_async<WIDTH * SIZE>(stage + to * SIZE, aligned(from));
    });
    if constexpr (SHIFTS) {
      if (thread() < LINES) ptx::cp_async<WIDTH * SIZE>(stage + (thread() * PITCH + BK) * SIZE, aligned(last));
    }
    advance();
  }

  // The same where `left` k's are there.
  __device__ __forceinline__ void issue(unsigned stage, long long left) {
    if (left >= NEEDED) {
      issue_whole(stage);
      return;
    }
    each<1>([&](int to, const T* from, int row, int place) {
      const int there = LINEWISE         ? int(left) - place + (SHIFTS ? misplaced(from) : 0)
                        : MODE == PACKED ? int(left) * LINES - place
                        : row < left     ? WIDTH
                                         : 0;
      copy_part(stage + to * SIZE, from, there, goes_on(row));
    });
    if constexpr (SHIFTS) {
      if (thread() < LINES)
        copy_part(stage + (thread() * PITCH + BK) * SIZE, last, int(left) - BK + misplaced(last), goes_on(thread()));
    }
    advance();
  }

 private:
  static constexpr int SIZE = int(sizeof(T));

  __device__ __forceinline__ void advance() {
    next += stage_stride;
    if constexpr (SHIFTS) last += stage_stride;
  }

  // Whether the matrix goes on in memory behind a row's last element: there another line lies, or what is between two.
  __device__ __forceinline__ bool goes_on(int row) const { return LINEWISE && row_stride > 0 && row < LINES - 1; }

  // Copies the first `there` elements of a copy, and zeros for the rest: of a part word by word, as a copy of all would
  // ask memory for what may not exist. The thread waits for half a word alone behind which nothing is.
  static __device__ __forceinline__ void copy_part(unsigned to, const T* from, int there, bool more) {
    if (there <= 0 || there >= WIDTH) {
      ptx::cp_async_or_zero<WIDTH * SIZE>(to, aligned(from), there > 0);
      return;
    }
    constexpr int WORD = SIZE < 4 ? 4 : SIZE, OF_WORD = WORD / SIZE;
#pragma unroll 1  // rare, and registers are not
    for (int i = 0; i < WIDTH; i += OF_WORD) {
      const T* const word = aligned(from) + i;
      if (OF_WORD == 1 || there >= i + OF_WORD || there <= i) {
        ptx::cp_async_or_zero<WORD>(to + i * SIZE, word, there > i);
      } else if (more) {
        ptx::cp_async_part<WORD>(to + i * SIZE, word, SIZE);
      } else {
        T* const element = static_cast<T*>(__cvta_shared_to_generic(to)) + i;
        element[0] = word[0];
        element[OF_WORD - 1] = T{};
      }
    }
  }

  // The vector in which SHIFTED lines' `from` lies. By its bits: from - misplaced(from) takes four instructions.
  static __device__ __forceinline__ const T* aligned(const T* from) {
    if constexpr (!SHIFTS) return from;
    return reinterpret_cast<const T*>(reinterpret_cast<unsigned long long>(from) & ~(VECTOR_BYTES - 1ull));
  }

  // Calls copy(place in the stage, source, row, place in the row) for each of this thread's copies.
  template <int AT_ONCE, class Copy>
  __device__ __forceinline__ void each(Copy copy) const {
    const T* from = next;
#pragma unroll AT_ONCE
    for (int slot = 0; slot < SLOTS; ++slot) {
      const bool there = ROWS > 0 && THREADS % INNER > 0
                             ? thread() < ROWS * INNER && row + slot * ROWS < ITEMS / INNER
                             : ITEMS % THREADS == 0 || slot + 1 < SLOTS || thread() < ITEMS - slot * THREADS;
      if (there) {
        if constexpr (ROWS > 0) {
          const int r = row + slot * ROWS;
          copy(r * PITCH + place, from, r, place);
        } else if constexpr (PARTS > 0) {
          const int r = slot / PARTS, part = slot % PARTS * (THREADS * WIDTH);
          copy(r * PITCH + place + part, from + r * row_stride + part * element_stride, r, place + part);
        } else {
          const int item = thread() + slot * THREADS;
          const int r = item / INNER, p = item % INNER * WIDTH;
          copy(r * PITCH + p, from + r * row_stride + p * element_stride, r, p);
        }
      }
      if constexpr (ROWS > 0) {
        from += ROWS * row_stride;
        asm volatile("" : "+l"(from));  // else a multiplication takes the place of each addition
      }
    }
  }
};

}  // namespace matmill
