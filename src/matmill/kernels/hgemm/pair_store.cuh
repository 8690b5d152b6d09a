// Stores a warp's tile of float32 or float64 outputs from registers, two adjacent ones at a time.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// Stores a warp's tile from registers. A lane has two adjacent outputs of a row, so a warp writes 32 or 64
// bytes of each of eight rows: whole sectors without staging. D_VEC is 2 where pairs of D are aligned, and else 1.
template <class Warp, class Scalar, int D_VEC>
struct PairStore {
  static constexpr int WARP_BYTES = 0;  // of a staging buffer

  // D = alpha * sums + beta * C where the tile, whose first row and column are given, is inside m x n.
  static __device__ __forceinline__ void store(const Warp& warp, unsigned char*, const Scalar* C, long long c_row,
                                               long long c_col, Scalar* D, long long d_row, long long d_col,
                                               int first_row, int first_column, int m, int n, Scalar alpha,
                                               Scalar beta) {
    // Whether C allows reads of pairs. The host passes no alignment for C.
    constexpr int PAIR = 2 * sizeof(Scalar);
    const bool c_wide =
        D_VEC == 2 && c_col == 1 && (c_row * (PAIR / 2) | reinterpret_cast<unsigned long long>(C)) % PAIR == 0;
    each_pair(warp, first_row, first_column, m, n, [&](int r, int c, bool both, Scalar x, Scalar y) {
      alignas(16) Scalar out[2] = {alpha * x, alpha * y};
      if (beta != 0) {  // beta = 0 must not read C: it may hold NaN, or not exist
        alignas(16) Scalar old[2] = {};
        const Scalar* const from = C + r * c_row + c * c_col;
        if (c_wide) {
          copy<2>(old, from);
        } else {
          old[0] = *from;
          if (both) old[1] = from[c_col];
        }
        out[0] = blend(alpha, x, beta, old[0]);
        out[1] = blend(alpha, y, beta, old[1]);
      }
      Scalar* const to = D + r * d_row + c * d_col;
      if constexpr (D_VEC == 2) {
        copy<2>(to, out);  // n is a multiple of 2
      } else {
        *to = out[0];
        if (both) to[d_col] = out[1];
      }
    });
  }

  // D = result(sum, row, column, what biases add): see shared/result.cuh.
  template <class Result>
  static __device__ __forceinline__ void store_result(const Warp& warp, const Result& result, Scalar* D,
                                                      long long d_row, long long d_col, int first_row,
                                                      int first_column) {
    each_pair(warp, first_row, first_column, result.m, result.n, [&](int r, int c, bool both, Scalar x, Scalar y) {
      Scalar* const to = D + r * d_row + c * d_col;
      const Scalar of_row = result.of_row(r);
      alignas(16) const Scalar out[2] = {result(x, r, c, of_row + result.of_column(c)),
                                         result(y, r, c + 1, of_row + result.of_column(c + 1))};
      if constexpr (D_VEC == 2) {
        copy<2>(to, out);  // n is a multiple of 2
      } else {
        *to = out[0];
        if (both) to[d_col] = out[1];
      }
    });
  }

  // Stores the sums of a split-K slice, m rows of n.
  static __device__ __forceinline__ void store_partial(const Warp& warp, Scalar* to, int first_row, int first_column,
                                                       int m, int n) {
    const bool wide = n % 2 == 0;  // the workspace starts on 16 bytes
    each_pair(warp, first_row, first_column, m, n, [&](int r, int c, bool both, Scalar x, Scalar y) {
      Scalar* const own = to + static_cast<long long>(r) * n + c;
      if (wide) {
        alignas(16) const Scalar pair[2] = {x, y};
        copy<2>(own, pair);
      } else {
        own[0] = x;
        if (both) own[1] = y;
      }
    });
  }

 private:
  // Calls f(row, column, whether the second is inside, first sum, second sum) for every pair whose first is inside.
  template <class F>
  static __device__ __forceinline__ void each_pair(const Warp& warp, int first_row, int first_column, int m, int n,
                                                   const F& f) {
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Warp::TM * 2; ++i) {
      const int r = row + i * 8;
      if (r >= m) continue;
#pragma unroll
      for (int j = 0; j < Warp::TN; ++j) {
        const int c = column + j * 8;
        const Scalar* const pair = &warp.sums[i / 2][j][i % 2 * 2];
        if (c < n) f(r, c, c + 1 < n, pair[0], pair[1]);
      }
    }
  }
};

}  // namespace matmill
