// The epilogue of a consumer warp group: its sums of a tile become D.
//
//   16-bit D     sums ── stmatrix ──▶ staging, 64 rows and STAGED columns at a time ── TMA or ordinary stores ──▶ D
//     D_ONE_RUN: sums ── elements ──▶ staging, 64 rows as they are in memory ── bulk copy ──▶ D
//   float32 D    sums ── pairs or single elements ──▶ D, whole sectors of 32 bytes; so do partial sums of split-K
//     off 16 bytes: sums ── pairs ──▶ staging, rows of STAGED columns ── ordinary stores ──▶ D
//
// Staging of 16-bit elements keeps D's own layout: rows of columns, or where D's columns are contiguous (D_TRANSPOSED) columns of rows. It
// is swizzled so that stmatrix meets no bank conflict, and so that TMA takes it. Interleaved rows stay so in staging; the
// map of D puts them back.
#pragma once

#include "kernels/pieces/piece.cuh"
#include "kernels/shared/result.cuh"
#include "kernels/shared/store_runs.cuh"
#include "matmill/ptx/barrier.cuh"
#include "matmill/ptx/ld_shared.cuh"
#include "matmill/ptx/st_shared.cuh"
#include "matmill/ptx/stmatrix.cuh"
#include "matmill/ptx/tma.cuh"
#include "kernels/wgmma/tile.cuh"

namespace matmill {

// The first of this thread's two columns of every eight.
__device__ __forceinline__ int lane_column() { return threadIdx.x % 4 * 2; }

// What row biases add to 128 columns, one of every 32 in each lane. They are loaded at once: one after another, each would
// wait for L2. Those of more columns do not fit in registers beside 192 sums.
template <class Outputs>
struct ColumnBiases {
  static constexpr int COLUMNS = 128;
  float own[COLUMNS / 32];

  // Loads those from column `first` on.
  __device__ __forceinline__ void load(const Outputs& outputs, int first) {
    if constexpr (Outputs::ROW_BIASES) {
#pragma unroll
      for (int i = 0; i < COLUMNS / 32; ++i) own[i] = outputs.of_column(first + 32 * i + threadIdx.x % 32);
    }
  }

  // That of this thread's first or `next` column of the eight from `base` on. All lanes of a warp call it.
  __device__ __forceinline__ float of(int base, int next) const {
    if constexpr (Outputs::ROW_BIASES) {
      return __shfl_sync(0xffffffffu, own[base / 32], base % 32 + lane_column() + next);
    } else {
      return 0.0f;
    }
  }
};

// Multiplies a warp group's sums of pieces by the powers of two of their rows and columns: by half of the exponent at a
// time, so that no intermediate result under- or overflows where the last one does not.
template <class Tile>
__device__ __forceinline__ void scale_back(typename Tile::Sums& sums, const int* of_rows, const int* of_columns, int m,
                                           int n, int first_row, int first_column) {
  constexpr int ROWS = Tile::ROW_TILES * 2;
  const WgmmaRows<Tile> rows;
  int of_row[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i)
    of_row[i] = of_rows[min(first_row + 64 * (i / 2) + rows.NEXT * (i % 2) + rows.first, m - 1)];
#pragma unroll
  for (int j = 0; j < Tile::BN / 4; ++j) {
    const int of_column = of_columns[min(first_column + lane_column() + 8 * (j / 2) + j % 2, n - 1)];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int exponent = of_row[i] + of_column, half = exponent >> 1;
      float& sum = sums[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2];
      sum = sum * power_of_two(half) * power_of_two(exponent - half);
    }
  }
}

// Stores the sums themselves, from the tile's first row and column at D on, in elements of float32. PAIRED says that two
// columns are one 8-byte store.
template <class Tile, bool PAIRED, class Outputs>
__device__ __forceinline__ void store_direct(const typename Tile::Sums& sums, const Outputs& outputs, float* D,
                                             long long d_row, long long d_column, int first_row, int first_column) {
  const WgmmaRows<Tile> rows;
  ColumnBiases<Outputs> biases;
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES * 2; ++i) {
    const int row = first_row + 64 * (i / 2) + rows.NEXT * (i % 2) + rows.first;
    const float of_row = outputs.of_row(row);
#pragma unroll
    for (int j = 0; j < Tile::BN / 8; ++j) {
      const int column = first_column + lane_column() + 8 * j;
      if constexpr (!Outputs::PLAIN) {
        if (first_column + 8 * j >= outputs.n) break;  // as in WgmmaStaging
      }
      const float(&own)[Tile::BN / 2] = sums[i / 2];
      const int first = 4 * j + i % 2 * 2;
      if (8 * j % biases.COLUMNS == 0) biases.load(outputs, first_column + 8 * j);
      const float of_columns[2] = {biases.of(8 * j % biases.COLUMNS, 0), biases.of(8 * j % biases.COLUMNS, 1)};
      const float x = outputs(own[first], row, column, of_row + of_columns[0]);
      const float y = outputs(own[first + 1], row, column + 1, of_row + of_columns[1]);
      if (row >= outputs.m || column >= outputs.n) continue;
      float* const to = D + row * d_row + column * d_column;
      if constexpr (PAIRED) {
        *reinterpret_cast<float2*>(to) = float2{x, y};
      } else {
        *to = x;
        if (column + 1 < outputs.n) to[d_column] = y;
      }
    }
  }
}

// Vectors that a thread stores at a time. Beside 192 sums, promoted ones among them, or in blocks of 512 threads, there
// are registers for one.
template <class Tile>
constexpr int VECTORS_AT_ONCE = Tile::BN* Tile::ROW_TILES > (Tile::PROMOTED ? 160 : 320) || Tile::THREADS > 384 ? 1 : 4;

// The staging buffer of a warp group: RUNS runs of D, each of WIDTH contiguous elements, in boxes of SPAN bytes of a run.
template <class Scalar, class Tile, bool TRANSPOSED>
struct WgmmaStaging {
  static constexpr int RUNS = TRANSPOSED ? Tile::STAGED : 64, WIDTH = TRANSPOSED ? 64 : Tile::STAGED;
  static constexpr int BOX = WIDTH % 64 == 0 ? 64 : WIDTH % 32 == 0 ? 32 : WIDTH % 16 == 0 ? 16 : 8;  // elements
  static constexpr int SPAN = BOX * 2, BOX_BYTES = RUNS * SPAN;
  static constexpr bool SHIFTED = false;  // runs start on 16 bytes
  unsigned start;

  // The address of an element; the tensor map of D has the same swizzle.
  __device__ __forceinline__ unsigned address(int run, int element) const {
    const unsigned offset = element / BOX * BOX_BYTES + run * SPAN + element % BOX * 2;
    return start + (offset ^ (offset >> 7 & (SPAN / 16 - 1)) << 4);
  }

  // Runs a multiple of eight apart have one swizzle.
  static __device__ __forceinline__ int distance(int runs) { return runs * SPAN; }

  // Writes STAGED columns of the sums, from column `first` on, rounded.
  template <class Outputs>
  __device__ __forceinline__ void write(const float (&sums)[Tile::BN / 2], const Outputs& outputs, int first,
                                        int first_row, int first_column) const {
    const WgmmaRows<Tile> rows;
    const float of_rows[2] = {outputs.of_row(first_row + rows.first),
                              outputs.of_row(first_row + rows.first + rows.NEXT)};
    ColumnBiases<Outputs> biases;
    int written = 0;  // groups of 16 columns
#pragma unroll
    for (; written < GROUPS; ++written) {
      const int inside = first + 16 * written;
      // Without a branch the compiler loads C of all columns ahead, and it does not fit in registers.
      if (!Outputs::PLAIN && first_column + inside >= outputs.n) break;
      if (16 * written % biases.COLUMNS == 0) biases.load(outputs, first_column + inside);
      float of_columns[4];
#pragma unroll
      for (int c = 0; c < (half(written) ? 2 : 4); ++c)
        of_columns[c] = biases.of(16 * written % biases.COLUMNS + 8 * (c / 2), c % 2);
      unsigned pairs[4];
#pragma unroll
      for (int p = 0; p < (half(written) ? 2 : 4); ++p) {
        const int row = first_row + rows.first + rows.NEXT * (p % 2);
        const int column = first_column + inside + lane_column() + 8 * (p / 2);
        const int s = inside / 2 + 2 * p;
        const int c = p / 2 * 2;
        pairs[p] = ptx::rounded_pair(Scalar(), outputs(sums[s], row, column, of_rows[p % 2] + of_columns[c]),
                                     outputs(sums[s + 1], row, column + 1, of_rows[p % 2] + of_columns[c + 1]));
      }
      put(written, pairs);
    }
#pragma unroll 1
    for (; written < GROUPS; ++written) put(written, {0, 0, 0, 0});  // columns beyond D
  }

  // Copies the buffer to D by ordinary stores, for runs at any distance. `runs` and `width` are those of D from the
  // buffer's first on.
  __device__ __forceinline__ void copy_out(Scalar* D, long long run_stride, long long stride, int runs,
                                           int width) const {
    const int end = min(width, WIDTH);
    runs = min(runs, RUNS);
    const int thread = threadIdx.x % 128;
    if (stride == 1) {
      store_runs<128, (WIDTH > 64 ? 16 : 8), VECTORS_AT_ONCE<Tile>>(*this, D, run_stride, runs, end, thread);
    } else {
#pragma unroll 1
      for (int v = thread; v < runs * WIDTH; v += 128) {
        const int run = v / WIDTH, element = v % WIDTH;
        if (element < end) D[run * run_stride + element * stride].bits = ptx::ld_shared_u16(address(run, element));
      }
    }
  }

 private:
  static constexpr int GROUPS = (Tile::STAGED + 15) / 16;   // of 16 columns

  // Tells whether a group has eight columns alone: the last one may.
  static __device__ __forceinline__ constexpr bool half(int group) { return 16 * group + 8 == Tile::STAGED; }

  // Writes 16 columns of the warp's 16 rows, or 8.
  __device__ __forceinline__ void put(int group, const unsigned (&pairs)[4]) const {
    // Lane q has the address of a run of matrix q / 8, 16 bytes; of eight columns there are two matrices.
    const int warp = threadIdx.x / 32 % 4, q = threadIdx.x % 32;
    const unsigned to = TRANSPOSED ? address(16 * group + q / 16 * 8 + q % 8, 16 * warp + q / 8 % 2 * 8)
                                   : address(16 * warp + q % 16, 16 * group + q / 16 * 8);
    if (half(group)) {
      ptx::stmatrix<TRANSPOSED>(to, {pairs[0], pairs[1]});
    } else {
      ptx::stmatrix<TRANSPOSED>(to, pairs);
    }
  }
};

// That of float32 elements: 64 rows in the order of the sums, which address() takes apart where these are interleaved.
// So that half a warp writes pairs of four rows without bank conflicts, rows are an odd number of 32 bytes apart, or
// where they are whole 128 bytes their pieces of 32 are swizzled.
template <class Tile>
struct WgmmaStaging<float, Tile, false> {
  static constexpr bool SWIZZLED = Tile::STAGED_PITCH % 32 == 0, SHIFTED = false;
  unsigned start;

  __device__ __forceinline__ unsigned address(int row, int column) const {
    return at(Tile::INTERLEAVED ? row % 8 * 8 + row / 8 : row, column);
  }

  // Of rows a multiple of eight apart, which have one swizzle.
  static __device__ __forceinline__ int distance(int rows) {
    return (Tile::INTERLEAVED ? rows / 8 : rows) * Tile::STAGED_PITCH * 4;
  }

  // Writes STAGED columns of the sums, from column `first` on.
  template <class Outputs>
  __device__ __forceinline__ void write(const float (&sums)[Tile::BN / 2], const Outputs& outputs, int first,
                                        int first_row, int first_column) const {
    const WgmmaRows<Tile> rows;
    const float of_rows[2] = {outputs.of_row(first_row + rows.first),
                              outputs.of_row(first_row + rows.first + rows.NEXT)};
    ColumnBiases<Outputs> biases;
    const unsigned own = at(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, lane_column());
#pragma unroll
    for (int j = 0; j < Tile::STAGED; j += 8) {
      if (!Outputs::PLAIN && first_column + first + j >= outputs.n) break;  // as above
      const int column = first_column + first + j + lane_column();
      if (j % biases.COLUMNS == 0) biases.load(outputs, first_column + first + j);
      const float of_columns[2] = {biases.of(j % biases.COLUMNS, 0), biases.of(j % biases.COLUMNS, 1)};
      const unsigned to = SWIZZLED ? (own ^ j % 32 * 4) + j / 32 * 128 : own + j * 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + rows.first + rows.NEXT * half, s = (first + j) / 2 + half * 2;
        ptx::st_shared_v2(to + half * 8 * Tile::STAGED_PITCH * 4,
                          {outputs(sums[s], row, column, of_rows[half] + of_columns[0]),
                           outputs(sums[s + 1], row, column + 1, of_rows[half] + of_columns[1])});
      }
    }
  }

  // Stores the buffer in D's rows of contiguous elements.
  __device__ __forceinline__ void copy_out(float* D, long long d_row, long long, int rows, int columns) const {
    store_runs<128, (Tile::STAGED > 32 ? 16 : 8), VECTORS_AT_ONCE<Tile>>(
        *this, D, d_row, min(rows, 64), min(columns, Tile::STAGED), threadIdx.x % 128);
  }

 private:
  // The address of an element of the `place`-th row of sums.
  __device__ __forceinline__ unsigned at(int place, int column) const {
    const unsigned offset = (place * Tile::STAGED_PITCH + column) * 4;
    return start + (SWIZZLED ? offset ^ place % 4 * 32 : offset);
  }
};

// Rounds and stores a warp group's sums of a tile through its part of the staging buffer. `D` is that of the
// batch's product; it is used where D_TMA is false, the map of D where it is true.
template <class Tile, bool TRANSPOSED, bool D_TMA, class Out, class Outputs>
__device__ __forceinline__ void store_staged(const typename Tile::Sums& sums, const Outputs& outputs, unsigned start,
                                             const TensorMap* map, Out* D, long long d_row, long long d_column,
                                             int first_row, int first_column, int batch, int barrier) {
  using Staging = WgmmaStaging<Out, Tile, TRANSPOSED>;
  const Staging staging{start};
  const bool first_thread = threadIdx.x % 128 == 0;
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES; ++i) {
#pragma unroll
    for (int first = 0; first < Tile::BN; first += Tile::STAGED) {
      const int row = first_row + 64 * i, column = first_column + first;
      // What left the buffer before has been read.
      if (D_TMA && first_thread) ptx::bulk_wait_read<0>();
      ptx::barrier_sync<128>(barrier);
      staging.write(sums[i], outputs, first, row, first_column);
      if (D_TMA) ptx::fence_proxy_async_shared();
      ptx::barrier_sync<128>(barrier);
      if constexpr (D_TMA) {
        if (first_thread) {
#pragma unroll
          for (int box = 0; box < Staging::WIDTH / Staging::BOX; ++box) {
            const int along = box * Staging::BOX;
            if constexpr (Tile::INTERLEAVED) {  // eight rows of every eighth one after another
              ptx::tma_store_4d(map, start + box * Staging::BOX_BYTES, column + along, row / 8, 0, batch);
              continue;
            }
            ptx::tma_store_3d(map, start + box * Staging::BOX_BYTES, TRANSPOSED ? row : column + along,
                              TRANSPOSED ? column : row, batch);
          }
          ptx::bulk_commit();
        }
      } else {
        Out* const to = D + row * d_row + column * d_column;
        staging.copy_out(to, TRANSPOSED ? d_column : d_row, TRANSPOSED ? d_row : d_column,
                         TRANSPOSED ? outputs.n - column : outputs.m - row,
                         TRANSPOSED ? outputs.m - row : outputs.n - column);
      }
    }
  }
}

// Writes 64 rows of a warp group's sums, rounded, to where they follow each other in shared memory. PAIRED: an even column
// and the next one are a word. Columns are stored in groups of eight, in which only the last one ends early.
template <class Tile, class Out, bool PAIRED, class Outputs>
__device__ __forceinline__ void write_one_run(const float (&sums)[Tile::BN / 2], const Outputs& outputs, unsigned start,
                                              int first_row) {
  const WgmmaRows<Tile> rows;
  const int n = outputs.n, column = lane_column();
  const float of_rows[2] = {outputs.of_row(first_row + rows.first), outputs.of_row(first_row + rows.first + rows.NEXT)};
  const unsigned to[2] = {start + (rows.first * n + column) * 2, start + ((rows.first + rows.NEXT) * n + column) * 2};
  ColumnBiases<Outputs> biases;
  const auto pair = [&](int j, int half) {
    const int row = first_row + rows.first + rows.NEXT * half, s = 4 * j + 2 * half;
    const float x = biases.of(8 * j % biases.COLUMNS, 0), y = biases.of(8 * j % biases.COLUMNS, 1);
    return ptx::rounded_pair(Out(), outputs(sums[s], row, 8 * j + column, of_rows[half] + x),
                             outputs(sums[s + 1], row, 8 * j + column + 1, of_rows[half] + y));
  };
#pragma unroll
  for (int j = 0; j < Tile::BN / 8; ++j) {
    if (8 * j >= n) break;
    if (8 * j % biases.COLUMNS == 0) biases.load(outputs, 8 * j);
    const int left = n - 8 * j - column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned both = pair(j, half);
      if (8 * j + 8 <= n) {
        if constexpr (PAIRED) {
          ptx::st_shared_u32(to[half] + 16 * j, both);
        } else {
          ptx::st_shared_u16(to[half] + 16 * j, both);
          ptx::st_shared_u16(to[half] + 16 * j + 2, both >> 16);
        }
      } else {
        if (left > 0) ptx::st_shared_u16(to[half] + 16 * j, both);
        if (left > 1) ptx::st_shared_u16(to[half] + 16 * j + 2, both >> 16);
      }
    }
  }
}

// Rounds and stores a warp group's sums where a tile has all columns of a D whose rows follow each other directly: 64
// rows are one run of memory, which stands in the staging buffer as far behind 16 bytes as it does at D.
template <class Tile, class Out, class Outputs>
__device__ __forceinline__ void store_one_run(const typename Tile::Sums& sums, const Outputs& outputs, unsigned start,
                                              Out* D, int first_row, int first_column, int barrier) {
  if (first_column > 0) return;  // of a cluster along n, whose first block has all columns
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < Tile::ROW_TILES; ++i) {
    const int row = first_row + 64 * i;
    Out* const run = D + Index(row) * outputs.n;
    const int head = int(reinterpret_cast<unsigned long long>(run) / sizeof(Out) % 8);
    if (thread == 0) ptx::bulk_wait_read<0>();  // what left the buffer before
    ptx::barrier_sync<128>(barrier);
    if (outputs.n % 2 == 0 && head % 2 == 0) {
      write_one_run<Tile, Out, true>(sums[i], outputs, start + head * 2, row);
    } else {
      write_one_run<Tile, Out, false>(sums[i], outputs, start + head * 2, row);
    }
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync<128>(barrier);
    const int count = min(64, outputs.m - row) * outputs.n, ahead = min(elements_ahead(run), count);
    const int whole = (count - ahead) / 8 * 8;
    if (thread == 0 && whole > 0) {
      ptx::bulk_store(run + ahead, start + (head + ahead) * 2, whole * 2);
      ptx::bulk_commit();
    }
    const int slot = thread - 32, after = ahead + whole + slot - 8;  // a warp stores what is before and after
    if (slot >= 0 && slot < ahead) store_element(run + slot, start + (head + slot) * 2);
    if (slot >= 8 && slot < 16 && after < count) store_element(run + after, start + (head + after) * 2);
  }
}

// Stores a warp group's sums as the constants say. `D` and the outputs are those of the batch's product.
template <class Config, class Tile, class Out, class Outputs>
__device__ __forceinline__ void store_tile(const typename Tile::Sums& sums, const Outputs& outputs, unsigned staging,
                                           const TensorMap* map, Out* D, long long d_row, long long d_column,
                                           int first_row, int first_column, int batch, int barrier) {
  if constexpr (Config::D_ONE_RUN != 0) {
    store_one_run<Tile>(sums, outputs, staging, D, first_row, first_column, barrier);
  } else if constexpr (Tile::STAGED == 0) {
    store_direct<Tile, Config::D_PAIRED != 0>(sums, outputs, D, d_row, d_column, first_row, first_column);
  } else {
    store_staged<Tile, Config::D_TRANSPOSED != 0, Config::D_TMA != 0>(
        sums, outputs, staging, map, D, d_row, d_column, first_row, first_column, batch, barrier);
  }
}

}  // namespace matmill
