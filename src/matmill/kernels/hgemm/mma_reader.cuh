// Reads fragments from swizzled tiles in shared memory by ldmatrix: of 16-bit elements, and of float32 along k.
#pragma once

#include "kernels/shared/swizzle.cuh"
#include "kernels/hgemm/warp_tile.cuh"

namespace matmill {

// Reads a warp's 16x16 matrices from a tile. A lane's addresses differ by constants, XORed or added: a step along a row
// changes bits of the piece's index that are 0 in the lane's first piece, and a step of 16 rows changes no bit that the
// swizzle uses. Tiles begin at multiples of 128 bytes, so the XOR affects the lane's offset alone, and is computed once
// before the loop.
template <class Warp, bool K_INNER, int ROW_BYTES>
struct MmaReader {
  using Fragment = typename Warp::Fragment;

  unsigned lane;  // of this lane's first row, in bytes from the tile

  // first: the warp's first outer index. B needs its two n8 tiles in adjacent registers, A its two groups of 8 rows.
  __device__ __forceinline__ MmaReader(unsigned first, bool of_a) {
    const unsigned l = threadIdx.x % 32;
    const bool halves_last = of_a == K_INNER;  // lanes 16-31 address the second piece, else rows 8-15
    const unsigned row = halves_last ? l % 16 : l % 8 + l / 16 * 8, piece = halves_last ? l / 16 : l / 8 % 2;
    lane = K_INNER ? swizzled<ROW_BYTES>(first + row, piece) : swizzled<ROW_BYTES>(row, first / 8 + piece);
  }

  // Matrix i of the warp's tile at step s of k.
  __device__ __forceinline__ void read(unsigned (&x)[4], unsigned tile, int i, int s) const {
    const int along = (K_INNER ? s : i) * 32, down = (K_INNER ? i : s) * 16 * ROW_BYTES;
    ptx::ldmatrix<!K_INNER>(x, tile + (lane ^ along % 128) + along / 128 * 128 + down);
  }

  __device__ __forceinline__ void read_a(Fragment& to, unsigned tile, int s) const {
#pragma unroll
    for (int i = 0; i < Warp::TM; ++i) read(to.a[i], tile, i, s);
  }

  __device__ __forceinline__ void read_b(Fragment& to, unsigned tile, int s) const {
#pragma unroll
    for (int j = 0; j < Warp::TN / 2; ++j) read(to.b[j], tile, j, s);
  }
};

}  // namespace matmill
