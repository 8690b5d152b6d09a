// A thread's fragment of E or F in registers: COUNT rows of E, or columns of F, with V consecutive k each. "outer"
// counts rows of E or columns of F.
//
//   ALONG_K  k is contiguous: V elements of one outer index are adjacent
//   PACKED   all outer indices of one k are adjacent, and so are the k's: the matrix is one run of memory
//   STRIDED  anything else; GROUP outer indices of one k may still be adjacent
//   SHIFTED  k is contiguous, but rows or columns start unaligned: staged only; one k at a time, or V 16-bit elements
//            as the words that contain them, shifted by half a word where the first element is not word-aligned
//
// OWNERS threads divide OUTER indices and take COUNT each, in interleaved groups of GROUP: adjacent threads read
// adjacent elements. An index beyond the last repeats it; its sums are discarded.
#pragma once

#include "matmill/dtype/number.cuh"
#include "kernels/inner/piece.cuh"
#include "kernels/inner/stage.cuh"

namespace matmill {

template <class T, int OUTER_, int COUNT_, int OWNERS, int V, int MODE, int GROUP>
struct Fragment {
  static constexpr int OUTER = OUTER_, COUNT = COUNT_;
  static constexpr bool UNALIGNED = MODE == SHIFTED, K_INNER = MODE == ALONG_K || UNALIGNED;
  static constexpr bool BY_WORD = UNALIGNED && V > 1;
  static_assert(!BY_WORD || (sizeof(T) == 2 && V % 2 == 0), "only 16-bit elements are read from unaligned words");
  static_assert(COUNT * OWNERS >= OUTER, "the owners must cover all outer indices");
  static_assert(GROUP == 1 || (!K_INNER && OUTER % GROUP == 0 && COUNT % GROUP == 0),
                "groups must divide the outer indices and each owner's count");

  static constexpr bool RUN = MODE == PACKED && OWNERS == 1;  // V k's of all outer indices are contiguous

  // 16-bit elements that are loaded in pairs are widened from the packed register.
  static constexpr bool PAIRS = sizeof(T) == 2 && (K_INNER          ? V % 2 == 0
                                                   : MODE == PACKED ? COUNT * V % 2 == 0
                                                                    : GROUP > 1);

  alignas(16) T x[COUNT * V];

  // An owner's i-th outer index; OUTER or more where there is none.
  static __device__ __forceinline__ constexpr int outer_index(int owner, int i) {
    return i / GROUP * (OWNERS * GROUP) + owner * GROUP + i % GROUP;
  }

  // The same for the first of a group, clamped to existing indices.
  static __device__ __forceinline__ int first_of_group(int owner, int i) {
    const int first = outer_index(owner, i);
    return (i / GROUP + 1) * OWNERS * GROUP <= OUTER ? first : min(first, OUTER - GROUP);
  }

  // Element i at the v-th k, as accumulator type.
  __device__ __forceinline__ typename NumberOf<T>::Acc wide(int i, int v) const {
    const int at = K_INNER ? i * V + v : v * COUNT + i;
    if constexpr (PAIRS) {
      const unsigned pair = reinterpret_cast<const unsigned*>(x)[at / 2];
      return at % 2 ? T::upper(pair) : T::lower(pair);
    } else {
      return NumberOf<T>::up(x[at]);
    }
  }

  // 16-bit elements: element i at k = 2 p and 2 p + 1 in one register. Where k is not contiguous, this merges two
  // registers.
  __device__ __forceinline__ unsigned pair(int i, int p) const {
    static_assert(sizeof(T) == 2 && COUNT * V % 2 == 0, "16-bit elements fill whole registers");
    const unsigned* const pairs = reinterpret_cast<const unsigned*>(x);
    if constexpr (K_INNER) {
      return pairs[i * V / 2 + p];
    } else {
      const int low = 2 * p * COUNT + i, high = low + COUNT;
      return __byte_perm(pairs[low / 2], pairs[high / 2], (low % 2 ? 0x32 : 0x10) + (high % 2 ? 0x7600 : 0x5400));
    }
  }

  // Reads from global memory, WIDTH elements per load. p points at outer index 0 and the piece's first k.
  template <int WIDTH>
  __device__ __forceinline__ void read(const T* p, int owner, long long outer_stride, long long k_stride) {
    if constexpr (MODE == PACKED) {
      static_assert(RUN && COUNT == OUTER, "one owner reads the whole run");
#pragma unroll
      for (int i = 0; i < COUNT * V; i += WIDTH) load<WIDTH>(&x[i], p + i);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i += GROUP) {
        const T* const from = p + first_of_group(owner, i) * outer_stride;
#pragma unroll
        for (int v = 0; v < V; v += K_INNER ? WIDTH : 1) {
          if constexpr (K_INNER) {
            load<WIDTH>(&x[i * V + v], from + v);
          } else {
            static_assert(WIDTH == GROUP || GROUP == 1, "a load reads one group");
            load<GROUP>(&x[v * COUNT + i], from + v * k_stride);
          }
        }
      }
    }
  }

  // Reads one k, into the first of V slots.
  __device__ __forceinline__ void read_one(const T* p, int owner, long long outer_stride) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      x[K_INNER ? i * V : i] = p[(first_of_group(owner, i - i % GROUP) + i % GROUP) * outer_stride];
  }

  // The offsets in a stage of this thread's fragment, one per group, at its own k; `first` is the matrix's first
  // element. Registers hold them, or the compiler would recompute them for every stage: one register where all are at
  // constant distances from the first, and one for each that is not. Outer indices have the same misalignment if their
  // distance is a multiple of a vector's elements.
  template <int PITCH>
  static __device__ __forceinline__ void offsets(int (&at)[COUNT], int owner, int k, const T* first, long long stride) {
    constexpr int OUTER_PITCH = K_INNER ? PITCH : 1, K_PITCH = K_INNER ? 1 : PITCH;
    constexpr bool SAME_ALIGNMENT = !UNALIGNED || OWNERS % (VECTOR_BYTES / int(sizeof(T))) == 0;
#pragma unroll
    for (int i = 0; i < COUNT; i += GROUP) {
      const int ahead = i / GROUP * OWNERS * GROUP;
      if (SAME_ALIGNMENT && i > 0 && ahead + OWNERS * GROUP <= OUTER) {
        at[i] = at[0] + ahead * OUTER_PITCH;
        continue;
      }
      const int own = first_of_group(owner, i);
      at[i] = own * OUTER_PITCH + k * K_PITCH;
      if constexpr (UNALIGNED) at[i] += misalignment(first + own * stride);
      asm volatile("" : "+r"(at[i]));
    }
  }

  // Reads from a stage in shared memory: outer indices PITCH apart with k contiguous, or k's PITCH apart with outer
  // indices contiguous. `k` is relative to this thread's own k and a multiple of V.
  template <int PITCH>
  __device__ __forceinline__ void read_stage(const T* stage, const int (&at)[COUNT], int k) {
    if constexpr (RUN) {
      constexpr int LENGTH = COUNT * V, FULL = 16 / int(sizeof(T)), WIDTH = LENGTH % FULL ? (LENGTH & -LENGTH) : FULL;
#pragma unroll
      for (int i = 0; i < LENGTH; i += WIDTH) copy<WIDTH>(&x[i], stage + at[0] + k * COUNT + i);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i += GROUP) read_group<PITCH>(stage, at, k, i);
    }
  }

  // The same for the one group that begins at element i.
  template <int PITCH>
  __device__ __forceinline__ void read_group(const T* stage, const int (&at)[COUNT], int k, int i) {
    if constexpr (BY_WORD) {
      const unsigned* const from = reinterpret_cast<const unsigned*>(stage + (at[i] & ~1) + k);
      unsigned word = from[0];
#pragma unroll
      for (int p = 0; p < V / 2; ++p) {
        const unsigned next = from[p + 1];
        reinterpret_cast<unsigned*>(x)[i * V / 2 + p] = __funnelshift_r(word, next, (at[i] & 1) * 16);
        word = next;
      }
    } else if constexpr (K_INNER) {
      copy<V>(&x[i * V], stage + at[i] + k);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) copy<GROUP>(&x[v * COUNT + i], stage + (k + v) * PITCH + at[i]);
    }
  }
};

}  // namespace matmill
