// A warp's 16 MT x 8 NT outputs of one product of 16-bit elements on tensor cores, from operands in shared memory.
//
// Fragments are read in whatever layout the operand has: pairs of consecutive k in one word where k is the faster
// dimension and rows start on words, else element by element. ptx/mma.cuh says which elements a lane holds.
#pragma once

#include "matmill/ptx/mma.cuh"

namespace matmill {

// Rows of A, or columns of B, 8 apart. K_INNER: k is the faster dimension. PAIRS: runs along k start on words.
template <class Scalar, int COUNT, bool K_INNER, bool PAIRS>
struct WarpOperand {
  static_assert(K_INNER || !PAIRS, "only along k are pairs in one word");

  const Scalar* first;
  int pitch, at[COUNT];

  // Past the end of `count` rows or columns it takes the last one, whose outputs are not stored.
  __device__ __forceinline__ WarpOperand(const Scalar* first, int pitch, int index, int count)
      : first(first), pitch(pitch) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) at[i] = min(index + 8 * i, count - 1) * (K_INNER ? pitch : 1);
  }

  // Elements k and k + 1 of the i-th row or column. TAIL: zero from `end` on.
  template <bool TAIL>
  __device__ __forceinline__ unsigned pair(int i, int k, int end) const {
    if constexpr (PAIRS && !TAIL) {
      return *reinterpret_cast<const unsigned*>(first + at[i] + k);
    } else {
      const int step = K_INNER ? 1 : pitch;
      const Scalar* const own = first + at[i] + k * step;
      const unsigned low = !TAIL || k < end ? own[0].bits : 0, high = !TAIL || k + 1 < end ? own[step].bits : 0;
      return low | high << 16;
    }
  }
};

template <class Scalar, int MT, int NT, class A, class B>
struct WarpProduct {
  ptx::Accumulator<false> sums[MT][NT];

  __device__ __forceinline__ void run(const A& a, const B& b, int k) {
    int done = 0;
#pragma unroll 2
    for (; done + 16 <= k; done += 16) multiply<false>(a, b, done, k);
    if (done < k) multiply<true>(a, b, done, k);
  }

 private:
  template <bool TAIL>
  __device__ __forceinline__ void multiply(const A& a, const B& b, int k, int end) {
    const int own = k + threadIdx.x % 4 * 2;
    unsigned columns[NT][2];
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      columns[j][0] = b.template pair<TAIL>(j, own, end);
      columns[j][1] = b.template pair<TAIL>(j, own + 8, end);
    }
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      const unsigned rows[4] = {a.template pair<TAIL>(2 * i, own, end), a.template pair<TAIL>(2 * i + 1, own, end),
                                a.template pair<TAIL>(2 * i, own + 8, end),
                                a.template pair<TAIL>(2 * i + 1, own + 8, end)};
#pragma unroll
      for (int j = 0; j < NT; ++j) ptx::mma_16x8x16<Scalar>(sums[i][j], rows, columns[j][0], columns[j][1]);
    }
  }
};

}  // namespace matmill
