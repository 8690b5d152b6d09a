// The swizzled layout of shared tiles: ldmatrix reads the eight rows of a matrix from all 32 banks.
#pragma once

namespace matmill {

// The number that a 16-byte piece's index within its row is XORed with. Rows of 128 bytes or more all begin in bank 0,
// so eight adjacent rows need eight different numbers. Two rows of 64 bytes share a pass over the banks, so pairs of
// rows do.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned swizzle_bits(unsigned row) {
  static_assert(ROW_BYTES >= 64 && ROW_BYTES % 64 == 0, "shorter rows have too few pieces to swap");
  if constexpr (ROW_BYTES == 64) return row / 2 % 4;
  return row % 8;
}

// The byte offset of a piece of a row.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned piece) {
  return row * ROW_BYTES + (piece ^ swizzle_bits<ROW_BYTES>(row)) * 16;
}

}  // namespace matmill
