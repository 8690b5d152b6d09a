// The lines of one matrix (rows of E, columns of F) that a thread works on, V consecutive k of each, in registers.
//
//   ALONG_K  k is contiguous: V elements of a line lie side by side
//   PACKED   all lines of one k are neighbours and the k's too: the matrix is one run of memory
//   STRIDED  anything else; GROUP lines of one k may still be neighbours
//   SHIFTED  k is contiguous and lines begin anywhere: only in stages; one k at a time, or 2-byte numbers as the words
//            that V of them touch, half a word out of step where a line begins within one
//
// TAKERS threads share LINES lines and take COUNT each, in groups of GROUP neighbours dealt out in turns: what
// neighbouring threads read then lies side by side too. Lines beyond the last repeat it; their sums go nowhere.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/inner/piece.cuh"
#include "matmill/inner/stage.cuh"

namespace matmill {

template <class T, int LINES_, int COUNT_, int TAKERS, int V, int MODE, int GROUP>
struct Lines {
  static constexpr int LINES = LINES_, COUNT = COUNT_;
  static constexpr bool SHIFTS = MODE == SHIFTED, ALONG = MODE == ALONG_K || SHIFTS;
  static constexpr bool BY_WORD = SHIFTS && V > 1;
  static_assert(!BY_WORD || (sizeof(T) == 2 && V % 2 == 0), "neighbours in k are not aligned");
  static_assert(COUNT * TAKERS >= LINES, "every line is taken");
  static_assert(GROUP == 1 || (!ALONG && LINES % GROUP == 0 && COUNT % GROUP == 0), "whole groups");

  static constexpr bool RUN = MODE == PACKED && TAKERS == 1;  // V k's of all lines lie side by side

  // Numbers of 2 bytes that come two to a register and more are widened from there.
  static constexpr bool PAIRS = sizeof(T) == 2 && (ALONG ? V % 2 == 0 : MODE == PACKED ? COUNT * V % 2 == 0 : GROUP > 1);

  alignas(16) T x[COUNT * V];

  // The number of a taker's i-th line; LINES and more where there is none.
  static __device__ __forceinline__ constexpr int line(int taker, int i) {
    return i / GROUP * (TAKERS * GROUP) + taker * GROUP + i % GROUP;
  }

  // The same for the first of a group, but a line that exists.
  static __device__ __forceinline__ int first_of_group(int taker, int i) {
    const int first = line(taker, i);
    return (i / GROUP + 1) * TAKERS * GROUP <= LINES ? first : min(first, LINES - GROUP);
  }

  // Line i at the v-th k, in the type to sum in.
  __device__ __forceinline__ typename NumberOf<T>::Acc wide(int i, int v) const {
    const int at = ALONG ? i * V + v : v * COUNT + i;
    if constexpr (PAIRS) {
      const unsigned pair = reinterpret_cast<const unsigned*>(x)[at / 2];
      return at % 2 ? T::upper(pair) : T::lower(pair);
    } else {
      return NumberOf<T>::up(x[at]);
    }
  }

  // Numbers of 2 bytes: line i at the k's 2 p and 2 p + 1 in one register. Where k's are not neighbours, two registers
  // with the line at either k are merged.
  __device__ __forceinline__ unsigned pair(int i, int p) const {
    static_assert(sizeof(T) == 2 && COUNT * V % 2 == 0, "whole registers");
    const unsigned* const pairs = reinterpret_cast<const unsigned*>(x);
    if constexpr (ALONG) {
      return pairs[i * V / 2 + p];
    } else {
      const int low = 2 * p * COUNT + i, high = low + COUNT;
      return __byte_perm(pairs[low / 2], pairs[high / 2], (low % 2 ? 0x32 : 0x10) + (high % 2 ? 0x7600 : 0x5400));
    }
  }

  // From global memory: p is the first line at the piece's first k. WIDTH elements a load.
  template <int WIDTH>
  __device__ __forceinline__ void read(const T* p, int taker, long long line_stride, long long k_stride) {
    if constexpr (MODE == PACKED) {
      static_assert(RUN && COUNT == LINES, "one thread takes the whole run");
#pragma unroll
      for (int i = 0; i < COUNT * V; i += WIDTH) load<WIDTH>(&x[i], p + i);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i += GROUP) {
        const T* const from = p + first_of_group(taker, i) * line_stride;
#pragma unroll
        for (int v = 0; v < V; v += ALONG ? WIDTH : 1) {
          if constexpr (ALONG) {
            load<WIDTH>(&x[i * V + v], from + v);
          } else {
            static_assert(WIDTH == GROUP || GROUP == 1, "a load takes a group");
            load<GROUP>(&x[v * COUNT + i], from + v * k_stride);
          }
        }
      }
    }
  }

  // One k alone, into the first of V places.
  __device__ __forceinline__ void read_one(const T* p, int taker, long long line_stride) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      x[ALONG ? i * V : i] = p[(first_of_group(taker, i - i % GROUP) + i % GROUP) * line_stride];
  }

  // Where in a stage this thread's lines begin, groups by their first line, at its own k; `first` is the matrix's first
  // element. Kept in registers, else the compiler works them out anew for every stage: one where all lie at fixed
  // distances from the first, and one for each that does not. Lines as many apart as a vector has elements begin alike.
  template <int PITCH>
  static __device__ __forceinline__ void places(int (&at)[COUNT], int taker, int k, const T* first, long long stride) {
    constexpr int LINE = ALONG ? PITCH : 1, K = ALONG ? 1 : PITCH;
    constexpr bool ALIKE = !SHIFTS || TAKERS % (VECTOR_BYTES / int(sizeof(T))) == 0;
#pragma unroll
    for (int i = 0; i < COUNT; i += GROUP) {
      const int past = i / GROUP * TAKERS * GROUP;
      if (ALIKE && i > 0 && past + TAKERS * GROUP <= LINES) {
        at[i] = at[0] + past * LINE;
        continue;
      }
      const int own = first_of_group(taker, i);
      at[i] = own * LINE + k * K;
      if constexpr (SHIFTS) at[i] += misplaced(first + own * stride);
      asm volatile("" : "+r"(at[i]));
    }
  }

  // From a stage in shared memory: lines PITCH apart with k contiguous, or k's PITCH apart with lines contiguous. `k`
  // counts from this thread's own and is a multiple of V.
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

  // The same for the group alone that begins with line i.
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
    } else if constexpr (ALONG) {
      copy<V>(&x[i * V], stage + at[i] + k);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) copy<GROUP>(&x[v * COUNT + i], stage + (k + v) * PITCH + at[i]);
    }
  }
};

}  // namespace matmill
