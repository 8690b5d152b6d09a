// A stage: BK consecutive k of one matrix, copied to shared memory by cp.async. "outer" counts rows of E or columns of
// F.
//
//   ALONG_K           [outer][k], PITCH apart
//   SHIFTED           the same for rows or columns that start unaligned: BK / WIDTH + 1 whole vectors each, from the
//                     aligned one that contains the stage's first k, which is misalignment() elements into it
//   PACKED            [k][outer], in the order of global memory
//   STRIDED           [k][outer], PITCH apart
//
// PITCH minimizes the bank conflicts of a warp's reads (matmill/kernels/inner/stages.py). Zeros follow the last k. Each
// copy has WIDTH elements; 2-byte elements are copied in pairs or more, since cp.async copies at least 4 bytes.
#pragma once

#include "kernels/inner/piece.cuh"
#include "matmill/ptx/cp_async.cuh"

namespace matmill {

constexpr int VECTOR_BYTES = 16;

// Elements of type T from the last 16-byte boundary to p.
template <class T>
__device__ __forceinline__ int misalignment(const T* p) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(p) % VECTOR_BYTES) / int(sizeof(T));
}

template <class T, int OUTER, int BK, int MODE, int WIDTH, int PITCH_, int THREADS, bool WHOLE_BLOCK>
struct Stage {
  static constexpr bool UNALIGNED = MODE == SHIFTED;
  static constexpr bool K_INNER = MODE == ALONG_K || UNALIGNED;
  static constexpr int PITCH = PITCH_;
  static constexpr int ELEMENTS = (K_INNER ? OUTER : BK) * PITCH;
  static constexpr int BYTES = ELEMENTS * int(sizeof(T));
  static constexpr int NEEDED = UNALIGNED ? BK + WIDTH : BK;  // k's that must remain for a stage without partial copies
  static_assert(BYTES % VECTOR_BYTES == 0, "the next stage must be aligned");
  static_assert(PITCH >= (K_INNER ? NEEDED : OUTER), "rows of the stage must not overlap");
  static_assert(MODE != PACKED || PITCH == OUTER, "a packed matrix keeps its layout");
  static_assert(!UNALIGNED || (WIDTH * sizeof(T) == VECTOR_BYTES && OUTER <= THREADS),
                "one thread copies the last vector of each row");

  // A row of the stage has INNER copies; rows are outer indices, k's, or (packed) the whole stage. A pass of all
  // threads covers whole rows, or one of ROW_PASSES equal parts of a row. Where it does neither (3 k-major rows of a
  // matrix that is not packed), each copy's position takes a division.
  static constexpr int INNER = K_INNER ? BK / WIDTH : MODE == PACKED ? BK * OUTER / WIDTH : OUTER / WIDTH;
  static constexpr int ITEMS = (K_INNER ? OUTER : MODE == PACKED ? 1 : BK) * INNER;
  static constexpr int SLOTS = (ITEMS + THREADS - 1) / THREADS;
  // Rows per pass. Threads beyond the last whole row are idle, where that costs no further pass.
  static constexpr int FULL_ROWS = INNER <= THREADS ? THREADS / INNER : 1;
  static constexpr int ROWS = INNER <= THREADS && (ITEMS / INNER + FULL_ROWS - 1) / FULL_ROWS == SLOTS ? FULL_ROWS : 0;
  static constexpr int ROW_PASSES =
      MODE == PACKED || INNER % THREADS == 0 ? (INNER + THREADS - 1) / THREADS : 0;  // passes per row
  static constexpr int UNROLL = SLOTS <= 16 ? SLOTS : 8;  // more copies in flight would need more address registers
  static_assert(INNER > 0 && INNER * WIDTH * (ITEMS / INNER) == BK * OUTER, "copies must cover the stage");

  // This thread's index among the THREADS that copy: the whole block, or a part of it.
  static __device__ __forceinline__ unsigned thread() { return WHOLE_BLOCK ? threadIdx.x : threadIdx.x % THREADS; }

  const T* next;  // this thread's first element of the next stage
  const T* last;  // SHIFTED: the last vector of this thread's row in the next stage
  long long row_stride, element_stride, stage_stride;
  int row, inner;  // of this thread's first copy: row, and element in the row

  // `first`: the matrix at the first stage's first k; `step`: k's from one stage of this block to the next.
  __device__ __forceinline__ Stage(const T* first, long long outer_stride, long long k_stride, long long step) {
    row = ROWS > 0 ? thread() / INNER : 0;
    inner = (ROWS > 0 ? thread() % INNER : thread()) * WIDTH;
    row_stride = K_INNER ? outer_stride : k_stride;
    element_stride = MODE == STRIDED ? outer_stride : 1;
    stage_stride = step * k_stride;
    next = first;
    if (ROWS > 0 || ROW_PASSES > 0) next += row * row_stride + inner * element_stride;
    last = first + (thread() < OUTER ? thread() : 0) * outer_stride + BK;
  }

  // Issues this thread's copies of a stage with at least NEEDED k's; `stage` is a shared-memory address.
  __device__ __forceinline__ void issue_whole(unsigned stage) {
    each<UNROLL>(
        [&](int to, const T* from, int, int) { ptx::cp_async<WIDTH * SIZE>(stage + to * SIZE, aligned(from)); });
    if constexpr (UNALIGNED) {
      if (thread() < OUTER) ptx::cp_async<WIDTH * SIZE>(stage + (thread() * PITCH + BK) * SIZE, aligned(last));
    }
    advance();
  }

  // The same where `left` k's remain.
  __device__ __forceinline__ void issue(unsigned stage, long long left) {
    if (left >= NEEDED) {
      issue_whole(stage);
      return;
    }
    each<1>([&](int to, const T* from, int row, int inner) {
      const int present = K_INNER          ? int(left) - inner + (UNALIGNED ? misalignment(from) : 0)
                          : MODE == PACKED ? int(left) * OUTER - inner
                          : row < left     ? WIDTH
                                           : 0;
      copy_partial(stage + to * SIZE, from, present, continues(row));
    });
    if constexpr (UNALIGNED) {
      if (thread() < OUTER)
        copy_partial(stage + (thread() * PITCH + BK) * SIZE, last, int(left) - BK + misalignment(last),
                     continues(thread()));
    }
    advance();
  }

 private:
  static constexpr int SIZE = int(sizeof(T));

  __device__ __forceinline__ void advance() {
    next += stage_stride;
    if constexpr (UNALIGNED) last += stage_stride;
  }

  // Whether the matrix's memory continues after a row's last element, with another row or unused elements between two.
  __device__ __forceinline__ bool continues(int row) const { return K_INNER && row_stride > 0 && row < OUTER - 1; }

  // Copies the first `present` elements of a copy, and zeros for the rest. It copies a partial vector word by word,
  // since a full copy could read beyond the matrix. Where half a word ends the matrix, the thread loads it
  // synchronously.
  static __device__ __forceinline__ void copy_partial(unsigned to, const T* from, int present, bool more) {
    if (present <= 0 || present >= WIDTH) {
      ptx::cp_async_zfill<WIDTH * SIZE>(to, aligned(from), present > 0);
      return;
    }
    constexpr int WORD = SIZE < 4 ? 4 : SIZE, PER_WORD = WORD / SIZE;
#pragma unroll 1  // rare, and unrolling costs registers
    for (int i = 0; i < WIDTH; i += PER_WORD) {
      const T* const word = aligned(from) + i;
      if (PER_WORD == 1 || present >= i + PER_WORD || present <= i) {
        ptx::cp_async_zfill<WORD>(to + i * SIZE, word, present > i);
      } else if (more) {
        ptx::cp_async_src_size<WORD>(to + i * SIZE, word, SIZE);
      } else {
        T* const element = static_cast<T*>(__cvta_shared_to_generic(to)) + i;
        element[0] = word[0];
        element[PER_WORD - 1] = T{};
      }
    }
  }

  // SHIFTED: rounds `from` down to its vector, by masking: from - misalignment(from) takes four instructions.
  static __device__ __forceinline__ const T* aligned(const T* from) {
    if constexpr (!UNALIGNED) return from;
    return reinterpret_cast<const T*>(reinterpret_cast<unsigned long long>(from) & ~(VECTOR_BYTES - 1ull));
  }

  // Calls copy(offset in the stage, source, row, element in the row) for each of this thread's copies.
  template <int IN_FLIGHT, class Copy>
  __device__ __forceinline__ void each(Copy copy) const {
    const T* from = next;
#pragma unroll IN_FLIGHT
    for (int slot = 0; slot < SLOTS; ++slot) {
      const bool present = ROWS > 0 && THREADS % INNER > 0
                               ? thread() < ROWS * INNER && row + slot * ROWS < ITEMS / INNER
                               : ITEMS % THREADS == 0 || slot + 1 < SLOTS || thread() < ITEMS - slot * THREADS;
      if (present) {
        if constexpr (ROWS > 0) {
          const int r = row + slot * ROWS;
          copy(r * PITCH + inner, from, r, inner);
        } else if constexpr (ROW_PASSES > 0) {
          const int r = slot / ROW_PASSES, pass_offset = slot % ROW_PASSES * (THREADS * WIDTH);
          copy(r * PITCH + inner + pass_offset, from + r * row_stride + pass_offset * element_stride, r,
               inner + pass_offset);
        } else {
          const int item = thread() + slot * THREADS;
          const int r = item / INNER, p = item % INNER * WIDTH;
          copy(r * PITCH + p, from + r * row_stride + p * element_stride, r, p);
        }
      }
      if constexpr (ROWS > 0) {
        from += ROWS * row_stride;
        asm volatile("" : "+l"(from));  // keeps the compiler from replacing each addition by a multiplication
      }
    }
  }
};

}  // namespace matmill
