// Stores a warp's tile of 16-bit outputs through shared memory, in whole sectors.
#pragma once

#include "kernels/hgemm/warp_tile.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// D_VEC is 8 where rows of D are on 16 bytes, and else 1.
template <class Scalar, bool ACC16, int WM, int WN, int D_VEC>
struct StagedStore {
  using Warp = WarpTile<Scalar, ACC16, WM, WN>;
  static constexpr int PITCH = WN + 8;  // floats per row of a warp's epilogue staging buffer
  static constexpr int STAGING = 16 * PITCH, WARP_BYTES = STAGING * 4;

  // D = alpha * sums + beta * C where the tile is inside m x n. Strides and pointers are those of C and D.
  //
  //   per 16 rows of the warp tile: lanes write sums to the warp's staging buffer │ lanes read its rows and write D
  //
  // An mma leaves a lane pairs of sums: a direct store would write 16 bytes to each of eight rows. Staged in shared
  // memory, a warp stores rows of up to 128 bytes, 16 bytes per lane, and reads C the same way. Each warp has its own
  // buffer, so one barrier is enough.
  //
  // first_row and first_column are those of the warp's tile in D.
  static __device__ __forceinline__ void store(const Warp& warp, unsigned char* shared, const Scalar* C,
                                               long long c_row, long long c_col, Scalar* D, long long d_row,
                                               long long d_col, int first_row, int first_column, int m, int n,
                                               float alpha, float beta) {
    __syncthreads();  // the stages become staging buffers
    const unsigned lane = threadIdx.x % 32;
    float* const staging = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * STAGING;
    float2* const own = reinterpret_cast<float2*>(staging) + lane / 4 * (PITCH / 2) + lane % 4;
    // Whether C allows 16-byte reads. The host passes no alignment for C.
    const bool c_wide = c_col == 1 && (c_row * 2 | reinterpret_cast<unsigned long long>(C)) % 16 == 0;
#pragma unroll
    for (int i = 0; i < Warp::TM; ++i) {
      if (i > 0) __syncwarp();
#pragma unroll
      for (int j = 0; j < Warp::TN; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const ptx::Accumulator<ACC16>& sums = warp.sums[i][j];
          own[(half * 8 * PITCH + j * 8) / 2] = float2{sums[half * 2], sums[half * 2 + 1]};
        }
      }
      __syncwarp();
      if constexpr (D_VEC == 8) {
        constexpr int LANES = WN / 8;  // per row
#pragma unroll
        for (int r = 0; r < 16; r += 32 / LANES) {
          store_vector(staging, r + lane / LANES, lane % LANES * 8, C, c_row, c_col, c_wide, D, d_row,
                       first_row + i * 16, first_column, m, n, alpha, beta);
        }
      } else {
        for (int e = lane; e < 16 * WN; e += 32) {
          const int r = first_row + i * 16 + e / WN, c = first_column + e % WN;
          if (r < m && c < n) {
            const float x = staging[e / WN * PITCH + e % WN];
            D[r * d_row + c * d_col] =
                Scalar::rounded(beta == 0.0f ? alpha * x : blend(alpha, x, beta, C[r * c_row + c * c_col].widened()));
          }
        }
      }
    }
  }

  // Stores the sums of a split-K slice, m rows of n, by pairs of a lane: 32 bytes to each of eight rows.
  static __device__ __forceinline__ void store_partial(const Warp& warp, float* to, int first_row, int first_column,
                                                       int m, int n) {
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Warp::TM * 2; ++i) {
      const int r = row + i * 8;
#pragma unroll
      for (int j = 0; j < Warp::TN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = column + j * 8 + e;
          if (r < m && c < n) to[static_cast<long long>(r) * n + c] = warp.sums[i / 2][j][i % 2 * 2 + e];
        }
      }
    }
  }

  // Stores eight adjacent outputs. row and column are relative to the staging buffer.
  static __device__ __forceinline__ void store_vector(const float* staging, int row, int column, const Scalar* C,
                                                      long long c_row, long long c_col, bool c_wide, Scalar* D,
                                                      long long d_row, int first_row, int first_column, int m, int n,
                                                      float alpha, float beta) {
    // Eight lanes read 16 bytes each per pass, 32 bytes apart. Every other four lanes read the second half first, so
    // that a pass uses all banks.
    const float* const from = &staging[row * PITCH + column];
    const unsigned swapped = threadIdx.x / 4 % 2;
    const float4 one = *reinterpret_cast<const float4*>(from + swapped * 4);
    const float4 other = *reinterpret_cast<const float4*>(from + 4 - swapped * 4);
    const float4 low = swapped ? other : one, high = swapped ? one : other;
    const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const int r = first_row + row, c = first_column + column;
    if (r >= m || c >= n) return;  // n is a multiple of 8
    alignas(16) unsigned words[4] = {}, out[4];
    if (beta != 0.0f) {  // beta = 0 must not read C: it may hold NaN, or not exist
      if (c_wide) {
        copy<4>(words, reinterpret_cast<const unsigned*>(&C[r * c_row + c]));
      } else {
#pragma unroll
        for (int v = 0; v < 8; ++v) words[v / 2] |= unsigned(C[r * c_row + (c + v) * c_col].bits) << v % 2 * 16;
      }
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      out[p] = beta == 0.0f ? Warp::pair(alpha * x[2 * p], alpha * x[2 * p + 1])
                            : Warp::pair(blend(alpha, x[2 * p], beta, Scalar::lower(words[p])),
                                         blend(alpha, x[2 * p + 1], beta, Scalar::upper(words[p])));
    }
    copy<4>(reinterpret_cast<unsigned*>(&D[r * d_row + c]), out);
  }
};

}  // namespace matmill
