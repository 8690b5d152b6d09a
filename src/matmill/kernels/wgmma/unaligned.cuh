// An A whose rows start anywhere: the producer's warps copy aligned vectors, consumers shift elements into registers.
//
//   K-major A    stage: BM runs of 64 elements of k, from the last 16-byte boundary before k on, and 16 bytes more
//   MN-major A   stage: 64 runs of BM elements of m, likewise
//
// Run r of a stage begins shift(r) bytes before its first element, 0 to 14. Runs eight apart have one shift, since eight
// pitches of 16-bit elements are whole vectors. A run's length in a stage is an odd multiple of 16 bytes, so that
// fragments meet few bank conflicts: eight K-major runs start in different groups of four banks, and so do four MN-major
// runs that are two apart. K-major runs of different shifts reach into each other's banks: where D allows it, those of
// one shift are neighbours (INTERLEAVED). Elements beyond A's ends are zero.
#pragma once

#include "matmill/ptx/ld_shared.cuh"
#include "matmill/ptx/mbarrier.cuh"
#include "kernels/wgmma/tile.cuh"

namespace matmill {

// A as runs: rows where it is K-major, else columns.
struct UnalignedRuns {
  const unsigned char* start;
  long long pitch;    // bytes from run to run
  int count, length;  // runs, and elements of a run

  // The bytes between the last 16-byte boundary and an element.
  static __device__ __forceinline__ int shift_of(const unsigned char* element) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(element) & 15);
  }
};

// Where a thread of the producer copies its vectors of a tile's stages from. Its runs are a multiple of eight apart, and
// have one shift; the vector behind a run's others, which the shift moves elements to, has a thread of its own.
template <class Tile>
struct UnalignedCopies {
  static constexpr bool K_MAJOR = Tile::A_K_MAJOR;
  static constexpr int RUNS = Tile::A_RUNS, PITCH = Tile::A_PITCH;  // runs of a stage, bytes from one to the next
  static constexpr int VECTORS = PITCH / 16 - 1, APART = 128 / VECTORS, COPIES = RUNS / APART;
  const unsigned char *from, *last;
  long long apart, next;      // bytes to this thread's next run, and to the next stage
  int runs, rest, last_rest;  // of A from this thread's first run and vectors on: runs, bytes
  unsigned to, last_to;

  // The place in a stage of a row of the tile.
  static __device__ __forceinline__ int place(int run) {
    return Tile::INTERLEAVED ? run / 64 * 64 + run % 8 * 8 + run % 64 / 8 : run;
  }

  // Places from this thread's first run to its i-th: its runs are 16 apart where they are interleaved.
  static __device__ __forceinline__ constexpr int places(int i) {
    return Tile::INTERLEAVED ? i / 4 * 64 + i % 4 * 2 : i * APART;
  }

  // `row` and `k` are the first of the tile, and of its first stage.
  __device__ __forceinline__ UnalignedCopies(const UnalignedRuns& a, int row, int k) {
    static_assert(APART % 8 == 0 && RUNS <= 128, "runs of a thread have one shift");
    static_assert(!Tile::INTERLEAVED || APART == 16, "places of a thread's runs");
    const int run = K_MAJOR ? row : k, element = K_MAJOR ? k : row;
    const int first = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    const unsigned char* const tile = a.start + run * a.pitch + 2 * element;
    from = tile + first * a.pitch, last = tile + threadIdx.x * a.pitch;
    const int shift = UnalignedRuns::shift_of(from), last_shift = UnalignedRuns::shift_of(last);
    from += 16 * vector - shift, last += 16 * VECTORS - last_shift;
    rest = 2 * (a.length - element) + shift - 16 * vector;
    last_rest = 2 * (a.length - element) + last_shift - 16 * VECTORS;
    runs = a.count - run;
    apart = APART * a.pitch, next = K_MAJOR ? Tile::SPAN : Tile::BK * a.pitch;
    to = place(first) * PITCH + 16 * vector, last_to = place(threadIdx.x) * PITCH + 16 * VECTORS;
  }

  // Copies the next stage. Elements beyond A's ends become zero.
  __device__ __forceinline__ void load(unsigned stage) {
    const bool whole = runs >= RUNS && min(rest, last_rest) >= 16;
    const unsigned char* source = from;
    if (__all_sync(~0u, whole)) {
#pragma unroll
      for (int i = 0; i < COPIES; ++i, source += apart) {
        ptx::cp_async_zfill<16>(stage + to + places(i) * PITCH, source, true);
      }
      if (threadIdx.x < RUNS) ptx::cp_async_zfill<16>(stage + last_to, last, true);
    } else {
      const int first = threadIdx.x / VECTORS, bytes = min(max(rest, 0), 16), last_bytes = min(max(last_rest, 0), 16);
#pragma unroll 1
      for (int i = 0; i < COPIES; ++i, source += apart) {
        ptx::cp_async_src_size<16>(stage + to + places(i) * PITCH, source, first + i * APART < runs ? bytes : 0);
      }
      if (threadIdx.x < RUNS) {
        ptx::cp_async_src_size<16>(stage + last_to, last, int(threadIdx.x) < runs ? last_bytes : 0);
      }
    }
    from += next, last += next;
    if constexpr (K_MAJOR) {
      rest -= Tile::SPAN, last_rest -= Tile::SPAN;
    } else {
      runs -= Tile::BK;
    }
  }
};

// A thread's fragments of its warp group's 64 rows of A: where they are in a stage. The lower half of a register holds
// the element of an even k, the upper half that of the next one.
template <class Tile>
struct UnalignedFragments {
  static constexpr bool K_MAJOR = Tile::A_K_MAJOR;
  static constexpr int PITCH = Tile::A_PITCH;
  static constexpr int NEXT_K = K_MAJOR ? 16 : 8 * PITCH;  // bytes from one k to the one eight further on
  unsigned low[2], high[2];                                // of the first and the second eight rows

  // `first_row` is the warp group's first row of the tile.
  __device__ __forceinline__ UnalignedFragments(const UnalignedRuns& a, int first_row) {
    const int k = threadIdx.x % 4 * 2;
    const WgmmaRows<Tile> rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      low[half] = offset(a, first_row, rows.first + half * rows.NEXT, k);
      high[half] = K_MAJOR ? low[half] + 2 : offset(a, first_row, rows.first + half * rows.NEXT, k + 1);
    }
  }

  // Loads the fragments of a stage, which starts at `stage`.
  __device__ __forceinline__ void load(unsigned (&fragments)[Tile::STEPS][4], unsigned stage) const {
#pragma unroll
    for (int s = 0; s < Tile::STEPS; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const unsigned from = stage + (2 * s + r / 2) * NEXT_K;
        if constexpr (Tile::A_PAIRED) {
          fragments[s][r] = ptx::ld_shared_u32(from + low[r % 2]);
        } else {
          fragments[s][r] =
              ptx::ld_shared_u16(from + low[r % 2]) | unsigned(ptx::ld_shared_u16(from + high[r % 2])) << 16;
        }
      }
    }
  }

 private:
  // Tiles start at multiples of eight runs, so that the shift of a stage's run is that of A's.
  static __device__ __forceinline__ unsigned offset(const UnalignedRuns& a, int first_row, int row, int k) {
    const int run = K_MAJOR ? first_row + row : k, element = K_MAJOR ? k : first_row + row;
    return UnalignedCopies<Tile>::place(run) * PITCH + UnalignedRuns::shift_of(a.start + run * a.pitch) + 2 * element;
  }
};

}  // namespace matmill
