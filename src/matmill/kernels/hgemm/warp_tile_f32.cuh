// A warp's WM x WN tile of float32 sums in registers, by tf32 mma on elements that are split in registers.
//
// Each element is the sum of two tf32 numbers, and of a product's four terms the three largest are added (inner/mma.cuh
// has the method and its bounds). Tensor cores truncate sums, so the mma of SUM_K terms of k start from zero, and FMA
// units, which round, add the result to the sums. The tile in shared memory holds whole float32 numbers: no copies of
// pieces are written, and elements are split again by every warp that reads them.
//
// Fragments have the registers of 16-bit ones, two bytes wide for four: where rows of a tile run along k, ldmatrix reads
// 8 rows of 4 terms as it reads 8 rows of 8. Where they do not, a lane reads its elements one by one.
#pragma once

#include "kernels/hgemm/mma_reader.cuh"
#include "kernels/shared/swizzle.cuh"
#include "kernels/shared/tf32_split.cuh"
#include "matmill/ptx/ld_shared.cuh"
#include "matmill/ptx/mma.cuh"

namespace matmill {

template <int SUM_K, int WM, int WN>
struct SplitTile {
  static constexpr int TM = WM / 16, TN = WN / 8, STEP = 8, STEPS_PER_SUM = SUM_K / STEP;
  static_assert(TM * 16 == WM && TN * 8 == WN && TN % 2 == 0, "one ldmatrix.x4 loads two n8 tiles of B");
  static_assert(STEPS_PER_SUM * STEP == SUM_K, "a sum is of whole steps");

  // 16 x 8 of A for each i; 8 x 16 of B, two adjacent n8 tiles, for each j.
  struct Fragment {
    unsigned a[TM][4], b[TN / 2][4];
  };

  float sums[TM][TN][4] = {};
  ptx::Accumulator<false> partial[TM][TN];  // of less than SUM_K terms

  // Multiplies step `step` of a k-tile.
  __device__ __forceinline__ void multiply(const Fragment& f, int step) {
    Split b[TN][2];
#pragma unroll
    for (int j = 0; j < TN * 2; ++j) b[j / 2][j % 2] = Split(__uint_as_float(f.b[j / 4][j % 4]));
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      unsigned high[4], low[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const Split a(__uint_as_float(f.a[i][x]));
        high[x] = a.high;
        low[x] = a.low;
      }
      // Term by term, so that consecutive mma are independent; the small terms first.
#pragma unroll
      for (int j = 0; j < TN; ++j) {
        if (step % STEPS_PER_SUM == 0) partial[i][j] = {};
        ptx::mma_m16n8k8_tf32(partial[i][j], low, b[j][0].high, b[j][1].high);
      }
#pragma unroll
      for (int j = 0; j < TN; ++j) ptx::mma_m16n8k8_tf32(partial[i][j], high, b[j][0].low, b[j][1].low);
#pragma unroll
      for (int j = 0; j < TN; ++j) ptx::mma_m16n8k8_tf32(partial[i][j], high, b[j][0].high, b[j][1].high);
      if (step % STEPS_PER_SUM == STEPS_PER_SUM - 1) {
#pragma unroll
        for (int e = 0; e < TN * 4; ++e) sums[i][e / 4][e % 4] += partial[i][e / 4].x[e % 4];
      }
    }
  }

  // Undoes the scale of Split, and tells whether all sums are finite.
  __device__ __forceinline__ bool unscale() {
    bool finite = true;
    each_sum([&](int, float& sum) {
      finite &= isfinite(sum);
      sum *= 1 / (Split::SCALE * Split::SCALE);
    });
    return finite;
  }

  // Adds up the sums that are not finite again, term by term on the FMA units. Splitting makes NaN of an infinite
  // element, and its scale may make a large sum infinite; so whatever FMA gives is the answer. A and B are at the warp's
  // first row and column and at the first of k terms; rows and columns are those from there on.
  __device__ __forceinline__ void sum_again(const float* A, long long a_row, long long a_column, const float* B,
                                            long long b_row, long long b_column, int rows, int columns, int k) {
    unsigned long long wrong = 0;
    each_sum([&](int index, const float& sum) {
      if (!isfinite(sum)) wrong |= 1ull << index;
    });
    const int first_row = threadIdx.x % 32 / 4, first_column = threadIdx.x % 4 * 2;
#pragma unroll 1
    for (; wrong != 0; wrong &= wrong - 1) {
      const int result = __ffsll(wrong) - 1;
      const int row = first_row + result / (TN * 4) * 16 + result % 4 / 2 * 8;
      const int column = first_column + result / 4 % TN * 8 + result % 2;
      if (row >= rows || column >= columns) continue;
      const float *a = A + row * a_row, *b = B + column * b_column;
      float x = 0;
#pragma unroll 1
      for (int done = 0; done < k && !isnan(x); done += 32) {  // NaN stays NaN
#pragma unroll 4
        for (int p = done; p < min(done + 32, k); ++p) x = __fmaf_rn(a[p * a_column], b[p * b_row], x);
      }
      each_sum([&](int index, float& sum) {
        if (index == result) sum = x;
      });
    }
  }

 private:
  static_assert(TM * TN <= 16, "sum_again() has a bit for each sum");

  // Calls f(index, sum) for each of the lane's sums.
  template <class F>
  __device__ __forceinline__ void each_sum(const F& f) {
#pragma unroll
    for (int index = 0; index < TM * TN * 4; ++index) f(index, sums[index / (TN * 4)][index / 4 % TN][index % 4]);
  }
};

// Reads fragments of tiles whose rows do not run along k, 4 bytes at a time: 32 bytes of each of four rows. With pairs of
// pieces swapped (swizzle_bits) that is every bank once.
template <int SUM_K, int WM, int WN, int ROW_BYTES>
struct MmaReader<SplitTile<SUM_K, WM, WN>, false, ROW_BYTES> {
  using Warp = SplitTile<SUM_K, WM, WN>;
  using Fragment = typename Warp::Fragment;

  unsigned lane;  // of this lane's first element, in bytes from the tile

  // first: the warp's first outer index.
  __device__ __forceinline__ MmaReader(unsigned first, bool) {
    const unsigned outer = first + threadIdx.x % 32 / 4;
    lane = swizzled<ROW_BYTES, 32>(threadIdx.x % 4, outer / 4) + outer % 4 * 4;
  }

  // This lane's term of the four from 4 q on, of its row or column of the eight from 8 o on.
  __device__ __forceinline__ unsigned read(unsigned tile, int o, int q) const {
    return ptx::ld_shared_u32(tile + (lane ^ o * 32 % 128) + o * 32 / 128 * 128 + q * 4 * ROW_BYTES);
  }

  __device__ __forceinline__ void read_a(Fragment& to, unsigned tile, int s) const {
#pragma unroll
    for (int e = 0; e < Warp::TM * 4; ++e) to.a[e / 4][e % 4] = read(tile, e / 4 * 2 + e % 2, s * 2 + e % 4 / 2);
  }

  __device__ __forceinline__ void read_b(Fragment& to, unsigned tile, int s) const {
#pragma unroll
    for (int e = 0; e < Warp::TN * 2; ++e) to.b[e / 4][e % 4] = read(tile, e / 2, s * 2 + e % 2);
  }
};

}  // namespace matmill
