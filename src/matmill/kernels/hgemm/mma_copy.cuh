// Copies tiles of A and B to shared memory for the pipeline of hgemm/mma.cuh.
#pragma once

#include "kernels/shared/swizzle.cuh"
#include "matmill/ptx/cp_async.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// Copies one operand's tile to shared memory. "outer" runs along m (for A) or n (for B). A tile has EXTENT rows of BK
// elements (K_INNER), or BK rows of EXTENT elements. Copies of VEC elements are spread over MOST_STEPS steps.
//
// A thread copies pieces of V elements: 16 bytes of 16-bit elements, in one copy or several; one copy of wider elements,
// so that neighbouring threads copy neighbouring elements whatever their alignment.
template <class Scalar, int EXTENT, int BK, int THREADS, bool K_INNER, int VEC, int MOST_STEPS>
struct MmaTileCopy {
  static constexpr int SIZE = sizeof(Scalar);
  static constexpr int ROW = K_INNER ? BK : EXTENT, ROW_BYTES = ROW * SIZE, ROWS = K_INNER ? EXTENT : BK;
  static constexpr int BYTES = ROWS * ROW_BYTES;
  // Bytes of a row that the swizzle keeps together: see swizzle_bits. ldmatrix reads float32 along k.
  static constexpr int TOGETHER = SIZE == 8 || (SIZE == 4 && !K_INNER) ? 32 : 16;
  static constexpr int V = SIZE == 2 ? 8 : VEC, PIECES = ROW / V;
  static constexpr int ADVANCE = THREADS / PIECES, SLOTS = ROWS / ADVANCE;  // rows per pass of the block, and passes
  static_assert(PIECES * ADVANCE == THREADS && SLOTS * ADVANCE == ROWS, "passes of all threads must cover the tile");
  static_assert((ADVANCE & (ADVANCE - 1)) == 0,
                "a pass's first row shares no bit with a thread's row: see swizzle_bits");
#if __CUDA_ARCH__ >= 800
  static constexpr bool DIRECT = VEC * SIZE >= 4;
#else
  static constexpr bool DIRECT = false;
#endif
  static_assert(DIRECT || SIZE == 2, "only 16-bit elements go through registers");
  static constexpr int COPIES = V / VEC;                      // copies per piece
  static constexpr int COPY_STEPS = DIRECT ? MOST_STEPS : 1;  // steps over which a tile's copies are spread

  const Scalar* next;            // this thread's first element of the next tile
  long long row_stride, stride;  // from one row to the next, from one element of a row to the next
  unsigned offset;               // this thread's first piece in the tile, in bytes
  int outer_left, k_left;        // extent of the matrix from this thread's first element
  uint4 held[DIRECT ? 1 : SLOTS];

  __device__ __forceinline__ MmaTileCopy(const Scalar* origin, long long outer_stride, long long k_stride,
                                         int outer_left, int k) {
    const unsigned piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES;
    constexpr int HALVES = 16 / (V * SIZE);  // pieces per 16 bytes
    offset = swizzled<ROW_BYTES, TOGETHER>(row, piece / HALVES) + piece % HALVES * (V * SIZE);
    row_stride = K_INNER ? outer_stride : k_stride;
    stride = VEC > 1 ? 1 : K_INNER ? k_stride : outer_stride;
    next = origin + row * row_stride + piece * V * stride;
    this->outer_left = outer_left - int(K_INNER ? row : piece * V);
    k_left = k - int(K_INNER ? piece * V : row);
  }

  // This thread's piece of pass s, in bytes from the tile, whose address is a multiple of 128.
  __device__ __forceinline__ unsigned at(int s) const {
    return (offset ^ swizzle_bits<ROW_BYTES, TOGETHER>(s * ADVANCE) * 16) + s * ADVANCE * ROW_BYTES;
  }

  // Issues the copies of one of COPY_STEPS steps; the last step advances to the next tile. tile is a shared-memory
  // address. Elements past the matrix's end become zeros.
  __device__ __forceinline__ void issue(unsigned tile, int copy_step) {
    const int first = SLOTS * copy_step / COPY_STEPS, end = SLOTS * (copy_step + 1) / COPY_STEPS;
    const Scalar* source = next + first * ADVANCE * row_stride;
    const int inner_left = K_INNER ? k_left : outer_left;
#pragma unroll
    for (int s = first; s < end; ++s) {
      const bool inside = s * ADVANCE < (K_INNER ? outer_left : k_left);
      alignas(16) unsigned words[4] = {};
#pragma unroll
      for (int p = 0; p < COPIES; ++p) {
        // Copied whole or not at all: the extent is a multiple of VEC, or zeros follow it in memory.
        const bool keep = inside && p * VEC < inner_left;
        const Scalar* from = source + p * VEC * stride;
        if constexpr (DIRECT) {
          ptx::cp_async_zfill<VEC * SIZE>(tile + at(s) + p * VEC * SIZE, from, keep);
        } else if (keep) {
          if constexpr (VEC == 1) {
            words[p / 2] |= unsigned(from->bits) << p % 2 * 16;
          } else {
            copy<VEC / 2>(&words[p * VEC / 2], reinterpret_cast<const unsigned*>(from));
          }
        }
      }
      if constexpr (!DIRECT) held[s] = uint4{words[0], words[1], words[2], words[3]};
      source += ADVANCE * row_stride;
    }
    if (copy_step == COPY_STEPS - 1) {
      next += BK * (K_INNER ? stride : row_stride);
      k_left -= BK;
    }
  }

  // Stores what issue() left in registers to shared memory.
  __device__ __forceinline__ void store_held(unsigned char* tile) const {
    if constexpr (!DIRECT) {
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) *reinterpret_cast<uint4*>(tile + at(s)) = held[s];
    }
  }
};

}  // namespace matmill
