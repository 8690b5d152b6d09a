// A warp's WM x WN tile of 32-bit sums in registers, by mma.sync on 8-bit integers, for the pipeline of hgemm/mma.cuh.
//
// Fragments have the registers of 16-bit ones, two bytes along k for one element: ldmatrix reads 8 rows of 16 bytes
// either way. It transposes pairs of bytes and never bytes, so rows of both tiles run along k.
#pragma once

#include "kernels/hgemm/mma.cuh"
#include "matmill/ptx/mma_integers.cuh"

namespace matmill {

template <class Scalar, int WM, int WN>
struct ByteTile {
  static constexpr int TM = WM / 16, TN = WN / 8, STEP = 32;
  static_assert(TM * 16 == WM && TN * 8 == WN && TN % 2 == 0, "one ldmatrix.x4 loads two n8 tiles of B");

  // 16 x 32 of A for each i; 32 x 16 of B, two adjacent n8 tiles, for each j.
  struct Fragment {
    unsigned a[TM][4], b[TN / 2][4];
  };

  unsigned sums[TM][TN][4] = {};

  __device__ __forceinline__ void multiply(const Fragment& f, int) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int jj = 0; jj < TN; ++jj) {
        const int j = i % 2 ? TN - 1 - jj : jj;  // back and forth: consecutive mma share an operand
        ptx::mma_m16n8k32(Scalar(), sums[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

template <class Scalar, class Config, int WM, int WN>
struct ByteTypes {
  static_assert(Config::A_K_INNER && Config::B_K_INNER, "rows of tiles of bytes run along k");
  static constexpr bool EPILOGUE = false;
  using Acc = unsigned;
  using Warp = ByteTile<Scalar, WM, WN>;
  using Store = PairStore<Warp, unsigned, Config::D_VEC>;
};

template <class Config, int WM, int WN>
struct MmaTypes<signed char, Config, WM, WN> : ByteTypes<signed char, Config, WM, WN> {};
template <class Config, int WM, int WN>
struct MmaTypes<unsigned char, Config, WM, WN> : ByteTypes<unsigned char, Config, WM, WN> {};

}  // namespace matmill
