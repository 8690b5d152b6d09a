// A warp's 16 MT x 8 NT outputs of one product of 16-bit elements on tensor cores, from operands in shared memory.
//
// Fragments are read in whatever layout the operand has: by ldmatrix where runs start on 16 bytes, pairs of consecutive k
// in one word where k is the faster dimension and runs start on words, else element by element. ptx/mma.cuh says which
// elements a lane holds.
#pragma once

#include "matmill/ptx/mma.cuh"

namespace matmill {

// COUNT groups of eight rows of A, or columns of B. K_INNER: k is the faster dimension. VEC elements of a run are aligned
// together: 8 where runs are whole vectors, 2 where k is the faster dimension and pairs are words, else 1.
template <class Scalar, int COUNT, bool K_INNER, int VEC>
struct WarpOperand {
  static_assert(VEC == 8 || VEC == 1 || (VEC == 2 && K_INNER), "only along k are pairs in one word");
  static constexpr bool MATRICES = VEC == 8;
  static constexpr int LOADS = MATRICES ? (COUNT + 1) / 2 : COUNT;

  const Scalar* first;
  int pitch, at[LOADS];

  // Past the end of `count` rows or columns it takes the last ones, whose outputs are not stored.
  __device__ __forceinline__ WarpOperand(const Scalar* first, int pitch, int index, int count)
      : first(first), pitch(pitch) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      if constexpr (MATRICES && K_INNER) {
        at[i] = min(index + 16 * i + lane / 16 * 8 + lane % 8, count - 1) * pitch + lane / 8 % 2 * 8;
      } else if constexpr (MATRICES) {
        at[i] = min(index + 16 * i + lane / 16 * 8, (count - 1) / 8 * 8) + (lane / 8 % 2 * 8 + lane % 8) * pitch;
      } else {
        at[i] = min(index + 8 * i + lane / 4, count - 1) * (K_INNER ? pitch : 1);
      }
    }
  }

  // Each group's pairs of k, ..., k + 7 and of the eight k after them. TAIL: zero from `end` on.
  template <bool TAIL>
  __device__ __forceinline__ void read(unsigned (&x)[COUNT][2], int k, int end) const {
    const int lane = threadIdx.x % 32;
    if constexpr (MATRICES) {
      const unsigned start = ptx::shared_address(first);
      int offset = K_INNER ? k : k * pitch;
      if constexpr (TAIL) {  // no read past the end: of runs along k the first eight again, else the last run
        const int own = k + lane / 8 % 2 * 8 + (K_INNER ? 0 : lane % 8);
        offset += (min(own, K_INNER ? k + (end - k > 8 ? 8 : 0) : end - 1) - own) * (K_INNER ? 1 : pitch);
      }
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        unsigned both[4];
        ptx::ldmatrix<!K_INNER>(both, start + 2 * (at[i] + offset));
        x[2 * i][0] = both[0], x[2 * i][1] = both[1], x[2 * i + 1][0] = both[2], x[2 * i + 1][1] = both[3];
      }
      if constexpr (COUNT % 2 != 0) {
        ptx::ldmatrix<!K_INNER>(x[COUNT - 1], start + 2 * (at[LOADS - 1] + offset));
      }
      if constexpr (TAIL) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int left = end - (k + 8 * half + lane % 4 * 2);
          const unsigned kept = left > 1 ? ~0u : left == 1 ? 0xffffu : 0u;
#pragma unroll
          for (int i = 0; i < COUNT; ++i) x[i][half] &= kept;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) x[i][half] = pair<TAIL>(i, k + 8 * half + lane % 4 * 2, end);
      }
    }
  }

 private:
  // Elements k and k + 1 of the i-th group's own row or column.
  template <bool TAIL>
  __device__ __forceinline__ unsigned pair(int i, int k, int end) const {
    if constexpr (VEC == 2 && !TAIL) {
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
    unsigned rows[2 * MT][2], columns[NT][2];
    a.template read<TAIL>(rows, k, end);
    b.template read<TAIL>(columns, k, end);
#pragma unroll
    for (int i = 0; i < MT; ++i) {
      const unsigned own[4] = {rows[2 * i][0], rows[2 * i + 1][0], rows[2 * i][1], rows[2 * i + 1][1]};
#pragma unroll
      for (int j = 0; j < NT; ++j) ptx::mma_16x8x16<Scalar>(sums[i][j], own, columns[j][0], columns[j][1]);
    }
  }
};

}  // namespace matmill
