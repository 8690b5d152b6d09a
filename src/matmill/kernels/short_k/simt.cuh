// A thread's TM x TN outputs of one product by FMAs, from operands in shared memory.
//
// A thread's rows and columns are `apart` from each other: neighbouring threads take neighbouring ones, so that reads of
// a warp fall into different banks, or into the same word.
#pragma once

#include "matmill/dtype/word.cuh"

namespace matmill {

// TILE rows of A, or columns of B. K_INNER: k is the faster dimension. VEC elements are read at once: consecutive k where
// that is the faster dimension, else consecutive rows or columns.
template <class Scalar, int TILE, bool K_INNER, int VEC>
struct ThreadOperand {
  static constexpr int STEP = K_INNER ? VEC : 1;  // k of a fragment
  static constexpr int ADJACENT = K_INNER ? 1 : VEC;  // consecutive rows or columns
  static_assert(TILE % ADJACENT == 0, "");

  const Scalar* first;
  int pitch, at[TILE / ADJACENT];

  // Of `count` rows or columns the thread takes those `apart` from each other, from the index-th on. Past the end it
  // takes the last ones. Outputs past the end, which a group may reach over, are not stored.
  __device__ __forceinline__ ThreadOperand(const Scalar* first, int pitch, int index, int apart, int count)
      : first(first), pitch(pitch) {
#pragma unroll
    for (int i = 0; i < TILE; i += ADJACENT) {
      at[i / ADJACENT] = min(outer(i, index, apart), (count - 1) / ADJACENT * ADJACENT) * (K_INNER ? pitch : 1);
    }
  }

  static __device__ __forceinline__ int outer(int i, int index, int apart) {
    return (index + i / ADJACENT * apart) * ADJACENT + i % ADJACENT;
  }

  // The elements of k, ..., k + COUNT - 1.
  template <int COUNT>
  __device__ __forceinline__ void read(Scalar (&x)[COUNT][TILE], int k) const {
    if constexpr (K_INNER) {
      constexpr int WIDTH = COUNT % VEC == 0 ? VEC : 1;
#pragma unroll
      for (int i = 0; i < TILE; ++i) {
        Scalar along[COUNT];
#pragma unroll
        for (int s = 0; s < COUNT; s += WIDTH) copy<WIDTH>(along + s, first + at[i] + k + s);
#pragma unroll
        for (int s = 0; s < COUNT; ++s) x[s][i] = along[s];
      }
    } else {
#pragma unroll
      for (int s = 0; s < COUNT; ++s)
#pragma unroll
        for (int i = 0; i < TILE; i += ADJACENT) copy<ADJACENT>(&x[s][i], first + (k + s) * pitch + at[i / ADJACENT]);
    }
  }
};

template <class Scalar, int TM, int TN, class A, class B>
struct ThreadTile {
  static constexpr int STEP = A::STEP > B::STEP ? A::STEP : B::STEP;
  static_assert(STEP % A::STEP == 0 && STEP % B::STEP == 0, "");

  Scalar sums[TM][TN] = {};

  __device__ __forceinline__ void run(const A& a, const B& b, int k) {
    int done = 0;
#pragma unroll(STEP == 1 ? 4 : 2)
    for (; done + STEP <= k; done += STEP) multiply<STEP>(a, b, done);
    if constexpr (STEP > 1) {
#pragma unroll 1
      for (; done < k; ++done) multiply<1>(a, b, done);
    }
  }

 private:
  template <int COUNT>
  __device__ __forceinline__ void multiply(const A& a, const B& b, int k) {
    Scalar rows[COUNT][TM], columns[COUNT][TN];
    a.template read<COUNT>(rows, k);
    b.template read<COUNT>(columns, k);
#pragma unroll
    for (int s = 0; s < COUNT; ++s)
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int jj = 0; jj < TN; ++jj) {
          const int j = i % 2 ? TN - 1 - jj : jj;  // back and forth: consecutive FMAs share an operand register
          sums[i][j] += rows[s][i] * columns[s][j];
        }
  }
};

}  // namespace matmill
