// Where the 16-byte pieces of a shared tile lie, so that ldmatrix finds eight rows of a matrix in all 32 banks.
#pragma once

namespace matmill {

// What the index of a piece within its row is XORed with. Rows of 128 bytes and more all begin in bank 0: eight
// neighbouring ones need eight different numbers. Two rows of 64 bytes share a pass over the banks, so pairs do.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned turn_of(unsigned row) {
  static_assert(ROW_BYTES >= 64 && ROW_BYTES % 64 == 0, "shorter rows have too few pieces to swap");
  if constexpr (ROW_BYTES == 64) return row / 2 % 4;
  return row % 8;
}

// The byte offset of a piece.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned piece) {
  return row * ROW_BYTES + (piece ^ turn_of<ROW_BYTES>(row)) * 16;
}

}  // namespace matmill
