// The swizzled layout of shared tiles: fragments are read from all 32 banks.
#pragma once

namespace matmill {

// The number that a 16-byte piece's index within its row is XORed with. It is linear: a sum of rows that share no bit
// has the XOR of their numbers.
//
// 16-bit elements: ldmatrix reads eight adjacent rows of one piece. Rows of 128 bytes or more all begin in bank 0, so
// eight adjacent rows need eight different numbers. Two rows of 64 bytes share a pass over the banks, so pairs of rows
// do.
//
// float64 (hgemm/warp_tile_f64.cuh): half a warp reads 32 bytes, two pieces, of each of four adjacent rows; so does a
// warp of float32 rows that do not run along k (hgemm/warp_tile_f32.cuh). Pairs of pieces stay together: TOGETHER is 32
// bytes. Then 32 bytes of shared memory come from one 32-byte sector.
template <int ROW_BYTES, int TOGETHER = 16>
__device__ __forceinline__ constexpr unsigned swizzle_bits(unsigned row) {
  static_assert(ROW_BYTES >= 64 && ROW_BYTES % 64 == 0, "shorter rows have too few pieces to swap");
  static_assert(ROW_BYTES >= 128 || TOGETHER == 16, "four rows of pairs need four pairs of pieces");
  if constexpr (TOGETHER == 32) return row % 4 * 2;
  if constexpr (ROW_BYTES == 64) return row / 2 % 4;
  return row % 8;
}

// The byte offset of a piece of a row.
template <int ROW_BYTES, int TOGETHER = 16>
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned piece) {
  return row * ROW_BYTES + (piece ^ swizzle_bits<ROW_BYTES, TOGETHER>(row)) * 16;
}

}  // namespace matmill
