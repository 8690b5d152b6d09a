// D = alpha * X + beta * Y for matrices in any layout, above all where X's columns and D's rows are contiguous.
//
//   X, COL ── 16-byte loads down W columns ── transposed in registers ──▶ words in shared memory ──┐ barrier
//   Y, ROW ── 16-byte loads along D's rows ──▶ registers ──────────────────────────────────────────┴─▶ 16-byte stores
//
// Either operand may be contiguous along D's rows or columns. A block computes BR rows by BC columns of D. It issues
// all its loads before it waits for any.
//
// Elements of 1 or 2 bytes reach memory speed only with few instructions each. So W elements of a row travel through
// shared memory as one 4-byte word: a thread loads the same rows of W adjacent columns and permutes bytes among its
// registers. Indices outside the matrix are clamped to its edge, where the load is harmless, instead of checked element
// by element.
//
// D's rows need not be aligned. Where they are not (SHIFTED), a block shifts its piece of each row of D left to a
// multiple of START elements, 16 bytes or more. Then D is stored, and Y loaded, in whole vectors whatever the pitch,
// and blocks need not share sectors; each block reads HALO more columns of X. Unaligned columns of X (COL_UNALIGNED),
// and rows of an operand with another alignment than D's (ROW_UNALIGNED), are copied to shared memory unchanged; see
// staging.cuh. Single elements are used only for vectors of D that extend beyond a row, and for vectors that extend
// beyond an operand's memory.
#pragma once

#include "kernels/transpose/staging.cuh"
#include "matmill/ptx/dependent_launch.cuh"

// Offsets take 64 bits: a matrix may hold more than 2^31 elements.
using Index = long long;

namespace matmill {

// How an operand is stored, relative to D; mirrored in kernels/transpose/tiles.py.
enum { ROW, COL, COL_UNALIGNED, STRIDED, ABSENT, ROW_UNALIGNED };

template <bool, class A, class B>
struct Conditional {
  using Type = A;
};
template <class A, class B>
struct Conditional<false, A, B> {
  using Type = B;
};

template <class Scalar, class Config>
struct TransposeTile {
  using Acc = typename NumberOf<Scalar>::Acc;
  static constexpr int V = Config::V, BR = Config::BR, BC = Config::BC, THREADS = Config::THREADS;
  static constexpr int SIZE = sizeof(Scalar), WARPS = THREADS / 32;
  using Vector = matmill::Vector<Scalar, V>;
  using Packed = typename Vector::Packed;
  using Word = typename Vector::Word;
  static constexpr int W = Vector::W, WORDS = Vector::WORDS;

  // Whether code for partial vectors is unrolled: with more elements it would be most of the code.
  static constexpr bool UNROLL_EDGES = V <= 8;
  static constexpr unsigned MAX_FLAT = 8;  // rows of tiles, up to which blocks go down the columns of D first

  // The misalignment of D's rows modulo START is a multiple of SHIFTED; 0: all rows are aligned to V.
  static constexpr bool SHIFTED = Config::SHIFTED != 0, PLAIN = Config::PLAIN != 0;
  static constexpr bool WORD_UNALIGNED = SHIFTED && Config::SHIFTED % W != 0;  // words of D straddle words of X
  static constexpr int START = Config::START, REACH = SHIFTED ? START - Config::SHIFTED : 0;
  static constexpr int HALO = (REACH + W - 1) / W * W;

  // Lanes that read adjacent vectors of a row, 128 bytes per row: four rows of eight vectors make a warp's access hit
  // every bank once.
  static constexpr int VECTORS = BC / V, LINE_VECTORS = 128 / (V * SIZE), MAX_LANES = VECTORS < 32 ? VECTORS : 32;
  static constexpr int LANES = LINE_VECTORS < MAX_LANES ? LINE_VECTORS : MAX_LANES, WARPS_ACROSS = VECTORS / LANES;
  static constexpr int ROWS = THREADS / VECTORS, SLOTS = BR / ROWS;
  static_assert(START % V == 0 && BC % START == 0, "shifted pieces of rows must start on whole vectors");
  static_assert(VECTORS * V == BC && LANES * WARPS_ACROSS == VECTORS && WARPS % WARPS_ACROSS == 0,
                "warps must cover rows");
  static_assert(ROWS * VECTORS == THREADS && SLOTS * ROWS == BR, "passes of all threads must cover the tile");

  // count * stride. One instruction adds a product of 32-bit integers to an address, five a product of 64-bit ones. The
  // inline PTX keeps the compiler from widening the factors.
  static __device__ __forceinline__ Index scaled(int count, int stride) {
    Index product;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(count), "r"(stride));
    return product;
  }
  static __device__ __forceinline__ Index scaled(int count, Index stride) { return count * stride; }

  // One matrix of the batch (grid.y): pointer, strides in bytes of D's rows and columns, and the batch stride.
  using Stride = typename Conditional<Config::FAR != 0, Index, int>::Type;
  struct Matrix {
    const unsigned char* first;
    Stride row, column;
    Index batch;

    __device__ __forceinline__ Matrix(const Scalar* start, Index row, Index column, Index batch)
        : first(reinterpret_cast<const unsigned char*>(start + blockIdx.y * batch)),
          row(row * SIZE),
          column(column * SIZE),
          batch(batch * SIZE) {}
    // The memory from the first to the last element of m rows and n columns: all of it is readable, also between rows.
    __device__ __forceinline__ Span span(int m, int n) const {
      const Index down = scaled(m - 1, row), across = scaled(n - 1, column);
      return {first + min(down, Index(0)) + min(across, Index(0)),
              first + max(down, Index(0)) + max(across, Index(0)) + SIZE, -Index(blockIdx.y) * batch,
              Index(gridDim.y - 1 - blockIdx.y) * batch};
    }
    __device__ __forceinline__ const Scalar* at(int r, int c) const {
      return reinterpret_cast<const Scalar*>(first + scaled(r, row) + scaled(c, column));
    }
    // The same where rows (in_column), or columns (in_row), are adjacent.
    __device__ __forceinline__ const Scalar* in_column(int r, int c) const {
      return reinterpret_cast<const Scalar*>(first + scaled(r, SIZE) + scaled(c, column));
    }
    __device__ __forceinline__ const Scalar* in_row(int r, int c) const {
      return reinterpret_cast<const Scalar*>(first + scaled(r, row) + scaled(c, SIZE));
    }
    // Elements from the last multiple of MULTIPLE elements in memory to (r, c).
    template <int MULTIPLE>
    __device__ __forceinline__ int misalignment(int r, int c) const {
      const unsigned low = unsigned(reinterpret_cast<unsigned long long>(first));
      return (low + unsigned(r) * unsigned(row) + unsigned(c) * unsigned(column)) / SIZE % MULTIPLE;
    }
  };

  // The vectors of D that a thread computes: one column of vectors, every ROWS-th row.
  struct DVectors {
    int row, column;  // of the first one, in D

    __device__ __forceinline__ DVectors(int row0, int column0) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      row = row0 + lane / LANES + warp / WARPS_ACROSS * (32 / LANES);
      column = column0 + (lane % LANES + warp % WARPS_ACROSS * LANES) * V;
    }
    // How many elements row r's piece is shifted left.
    static __device__ __forceinline__ int shift(const Matrix& D, int r) {
      return SHIFTED ? D.template misalignment<START>(r, 0) : 0;
    }
  };

  // Whether the vector from column c on has elements in a row of n columns.
  static __device__ __forceinline__ bool touches(int c, int n) { return unsigned(c + V - 1) < unsigned(n + V - 1); }

  // Whether a whole vector of X may be loaded although it extends beyond a row; the extra elements are unused. Not
  // where X is D: other threads write those elements concurrently.
  static __device__ __forceinline__ bool may_overread(const Matrix& X, const Matrix& D, const Scalar* from, int m,
                                                      int n) {
    const unsigned char* const low = reinterpret_cast<const unsigned char*>(from);
    return X.first != D.first && X.span(m, n).contains(low, low + V * SIZE);
  }

  // ROW: contiguous along D's rows. Loads WIDTH elements at a time into registers.
  template <int WIDTH>
  struct RowOperand {
    static constexpr int BYTES = 0;
    Vector values[SLOTS];

    __device__ __forceinline__ void fetch(unsigned char*, const Matrix& X, const Matrix& D, int row0, int column0,
                                          int m, int n) {
      const DVectors own(row0, column0);
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) {
        const int r = own.row + s * ROWS, c = own.column - DVectors::shift(D, r);
        if (r >= m || (WIDTH > 1 && !touches(c, n))) continue;
        if ((c >= 0 && c + V <= n) || (WIDTH > 1 && may_overread(X, D, X.in_row(r, c), m, n))) {
#pragma unroll
          for (int i = 0; i < V; i += WIDTH) {
            const Scalar* const from = WIDTH > 1 ? X.in_row(r, c + i) : X.at(r, c + i);
            copy<WIDTH>(reinterpret_cast<Scalar*>(values[s].words) + i, from);
          }
        } else if constexpr (UNROLL_EDGES && WIDTH == 1) {
          values[s] = Vector::gathered([&](int i) { return c + i >= 0 && c + i < n ? *X.at(r, c + i) : Scalar{}; });
        } else {
#pragma unroll 4
          for (int i = 0; i < V; ++i) {
            values[s].push(c + i >= 0 && c + i < n ? *X.at(r, c + i) : Scalar{});
          }
        }
      }
    }
    __device__ __forceinline__ void store_shared(const Matrix&, unsigned char*, int, int, int, int) const {}
    __device__ __forceinline__ Vector at(const unsigned char*, int s, int, int) const { return values[s]; }
  };

  // ROW_UNALIGNED: contiguous along D's rows, with another alignment than D's vectors. A thread reads what others
  // copied, so this operand never aliases D.
  struct UnalignedRowOperand {
    using Rows = StagedRows<Scalar, THREADS, BR, BC + REACH>;
    static constexpr int BYTES = Rows::BYTES;
    Rows rows;

    __device__ __forceinline__ void fetch(unsigned char* tile, const Matrix& X, const Matrix&, int row0, int column0,
                                          int m, int n) {
      rows.fetch(tile,
                 typename Rows::template Source<Stride>{
                     reinterpret_cast<const unsigned char*>(X.in_row(row0, column0 - REACH)), X.span(m, n), X.row, row0,
                     m, column0 - REACH, n},
                 [](int count, Stride stride) { return scaled(count, stride); });
    }
    __device__ __forceinline__ void store_shared(const Matrix&, unsigned char*, int, int, int, int) const {}
    __device__ __forceinline__ Vector at(const unsigned char*, int, int r, int column) const {
      return rows.along_row(r, column + REACH);
    }
  };

  // The transposed tile of COLUMNS columns in shared memory: D's rows of the block, and its columns after HALO others.
  //
  // The word of row r and columns g W to g W + W - 1 has index g PITCH + r + r / 32 * PAD. PITCH is odd, and PAD is
  // less than the distance of two vectors: both a warp's reads and its writes, adjacent vectors of adjacent columns of
  // words, are free of bank conflicts.
  struct SharedTile {
    static constexpr int COLUMNS = BC + HALO, PAD = V < 8 ? V / 2 : 4, PITCH = (BR + (BR - 1) / 32 * PAD) | 1;
    static constexpr int BYTES = (PITCH * (COLUMNS / W) * int(sizeof(Word)) + 15) / 16 * 16;

    static __device__ __forceinline__ int offset(int group, int r) { return group * PITCH + r + r / 32 * PAD; }
    // The vector of row r that begins at a column; both are relative to the block's tile.
    static __device__ __forceinline__ Vector read(const unsigned char* tile, int r, int column) {
      const unsigned begin = column + HALO;
      const Word* const from = reinterpret_cast<const Word*>(tile) + offset(begin / W, r);
      Vector v;
      if constexpr (WORD_UNALIGNED) {
        const unsigned inside = begin % W;
        unsigned word = from[0];
#pragma unroll
        for (int j = 0; j < WORDS; ++j) {
          // One more word, if the vector extends into it.
          const unsigned next = from[j + 1 < WORDS || inside != 0 ? (j + 1) * PITCH : j * PITCH];
          v.words[j] = __funnelshift_r(word, next, inside * SIZE * 8);
          word = next;
        }
      } else {
#pragma unroll
        for (int j = 0; j < WORDS; ++j) v.words[j] = from[j * PITCH];
      }
      return v;
    }
  };

  // Clamps a column to a matrix of n columns.
  static __device__ __forceinline__ int nearest(int column, int n) { return max(0, min(column, n - 1)); }

  // COL: contiguous along D's columns, on whole vectors. A thread loads the same V rows of W columns, transposes them
  // in registers, and stores V words of W elements.
  struct ColOperand : SharedTile {
    using SharedTile::COLUMNS;
    static constexpr int GROUPS = COLUMNS / W, COLUMN_VECTORS = BR / V;  // groups of columns; vectors per column
    static constexpr int LANES_DOWN = COLUMN_VECTORS < LINE_VECTORS && COLUMN_VECTORS < 32 ? COLUMN_VECTORS
                                      : LINE_VECTORS < 32                                  ? LINE_VECTORS
                                                                                           : 32,
                         WARPS_DOWN = COLUMN_VECTORS / LANES_DOWN;
    static constexpr int PASS = THREADS / COLUMN_VECTORS;
    static constexpr int ROUNDS = (GROUPS + PASS - 1) / PASS;
    static_assert(BR % V == 0 && WARPS_DOWN * LANES_DOWN == COLUMN_VECTORS && PASS * COLUMN_VECTORS == THREADS &&
                      WARPS % WARPS_DOWN == 0,
                  "whole warps");
    Vector values[ROUNDS][W];

    __device__ __forceinline__ void fetch(unsigned char*, const Matrix& X, const Matrix&, int row0, int column0, int m,
                                          int n) {
      // Clamped to the last vector that contains row m - 1.
      const int r = min(row0 + vector() * V, (m - 1) / V * V);
      // Everything before the last element is readable: the next column follows a column's end.
      const Scalar* const end = X.in_column(m, X.column > 0 ? n - 1 : 0);
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        if (!present(s)) continue;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const Scalar* const from = X.in_column(r, column(s, w, column0, n));
          if (r + V <= m || from + V <= end) {
            values[s][w].load(from);
          } else {
#pragma unroll 4
            for (int i = 0; i < V; ++i) values[s][w].push(r + i < m ? from[i] : Scalar{});
          }
        }
      }
    }

    __device__ __forceinline__ void store_shared(const Matrix&, unsigned char* tile, int, int, int, int) const {
      Word* const to = reinterpret_cast<Word*>(tile) + SharedTile::offset(group(0), vector() * V);
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        if (!present(s)) continue;
#pragma unroll
        for (int j = 0; j < WORDS; ++j) {
          Word words[W], rows[W];
#pragma unroll
          for (int w = 0; w < W; ++w) words[w] = values[s][w].words[j];
          Packed::transpose(rows, words);
#pragma unroll
          for (int w = 0; w < W; ++w) to[s * PASS * SharedTile::PITCH + j * W + w] = rows[w];
        }
      }
    }

    __device__ __forceinline__ Vector at(const unsigned char* tile, int, int r, int column) const {
      return SharedTile::read(tile, r, column);
    }

   private:
    // This thread's vector in a column, and its group of columns in round s.
    static __device__ __forceinline__ int vector() {
      return threadIdx.x % 32 % LANES_DOWN + threadIdx.x / 32 % WARPS_DOWN * LANES_DOWN;
    }
    static __device__ __forceinline__ int group(int s) {
      return threadIdx.x % 32 / LANES_DOWN + threadIdx.x / 32 / WARPS_DOWN * (32 / LANES_DOWN) + s * PASS;
    }
    static __device__ __forceinline__ bool present(int s) {
      return GROUPS % PASS == 0 || s + 1 < ROUNDS || group(s) < GROUPS;
    }
    // Column w of the group, clamped to the matrix.
    static __device__ __forceinline__ int column(int s, int w, int column0, int n) {
      return nearest(column0 - HALO + group(s) * W + w, n);
    }
  };

  // COL_UNALIGNED: contiguous along D's columns, at any alignment. Copied unchanged; a vector of D is gathered element
  // by element. Extracting each vector from the two that contain it took 86 issue slots per vector.
  struct UnalignedColOperand {
    using Columns = StagedRows<Scalar, THREADS, BC + REACH, BR>;
    static constexpr int BYTES = Columns::BYTES;
    Columns columns;

    __device__ __forceinline__ void fetch(unsigned char* tile, const Matrix& X, const Matrix&, int row0, int column0,
                                          int m, int n) {
      columns.fetch(tile,
                    typename Columns::template Source<Stride>{
                        reinterpret_cast<const unsigned char*>(X.in_column(row0, column0 - REACH)), X.span(m, n),
                        X.column, column0 - REACH, n, row0, m},
                    [](int count, Stride stride) { return scaled(count, stride); });
    }
    __device__ __forceinline__ void store_shared(const Matrix&, unsigned char*, int, int, int, int) const {}
    __device__ __forceinline__ Vector at(const unsigned char*, int, int r, int column) const {
      return columns.across_rows(column + REACH, r);
    }
  };

  // STRIDED: contiguous in neither dimension. Loaded and stored element by element.
  struct StridedOperand : SharedTile {
    static constexpr int ELEMENTS = SharedTile::COLUMNS * BR, ROUNDS = (ELEMENTS + THREADS - 1) / THREADS;
    Scalar values[ROUNDS];

    __device__ __forceinline__ void fetch(unsigned char*, const Matrix& X, const Matrix&, int row0, int column0, int m,
                                          int n) {
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        const int item = threadIdx.x + s * THREADS, c = nearest(column0 - HALO + item / BR, n);
        if (item < ELEMENTS) values[s] = *X.at(min(row0 + item % BR, m - 1), c);
      }
    }

    __device__ __forceinline__ void store_shared(const Matrix&, unsigned char* tile, int, int, int, int) const {
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        const unsigned item = threadIdx.x + s * THREADS, c = item / BR;
        Scalar* const to = reinterpret_cast<Scalar*>(tile) + SharedTile::offset(c / W, item % BR) * W + c % W;
        if (item < ELEMENTS) *to = values[s];
      }
    }

    __device__ __forceinline__ Vector at(const unsigned char* tile, int, int r, int column) const {
      return SharedTile::read(tile, r, column);
    }
  };

  struct AbsentOperand {
    static constexpr int BYTES = 0;
    __device__ __forceinline__ void fetch(unsigned char*, const Matrix&, const Matrix&, int, int, int, int) {}
    __device__ __forceinline__ void store_shared(const Matrix&, unsigned char*, int, int, int, int) const {}
  };

  template <int MODE, int WIDTH>
  struct Operand {
    using Type = RowOperand<WIDTH>;
  };
  template <int WIDTH>
  struct Operand<COL, WIDTH> {
    using Type = ColOperand;
  };
  template <int WIDTH>
  struct Operand<COL_UNALIGNED, WIDTH> {
    using Type = UnalignedColOperand;
  };
  template <int WIDTH>
  struct Operand<ROW_UNALIGNED, WIDTH> {
    using Type = UnalignedRowOperand;
  };
  template <int WIDTH>
  struct Operand<STRIDED, WIDTH> {
    using Type = StridedOperand;
  };
  template <int WIDTH>
  struct Operand<ABSENT, WIDTH> {
    using Type = AbsentOperand;
  };
  using OperandX = typename Operand<Config::X_MODE, Config::X_WIDTH>::Type;
  using OperandY = typename Operand<Config::Y_MODE, Config::Y_WIDTH>::Type;
  static_assert(OperandX::BYTES + OperandY::BYTES == Config::SHARED_BYTES,
                "host and device must agree on shared memory");
  // Whether an operand is copied by cp.async.
  static constexpr bool copied(int mode) { return mode == COL_UNALIGNED || mode == ROW_UNALIGNED; }
  static constexpr bool COPIES = copied(Config::X_MODE) || copied(Config::Y_MODE);

  // Computes a block's tile of D (grid.x), of one matrix of the batch (grid.y). Y and D may alias. `shared` holds
  // SHARED_BYTES, aligned to 16.
  static __device__ __forceinline__ void run(unsigned char* shared, const Args& args) {
    ptx::wait_then_trigger();
    unsigned char* const x_tile = shared;
    unsigned char* const y_tile = shared + OperandX::BYTES;
    const int m = args.m, n = args.n;
    const Matrix mx(args.X, args.x_row, args.x_column, args.x_batch),
        my(args.Y, args.y_row, args.y_column, args.y_batch), md(args.D, args.d_row, args.d_column, args.d_batch);

    // Raster order: along D's rows, so that concurrent blocks write adjacent pieces of them. Where D has few, long
    // rows: down its columns, whose pieces are adjacent in X.
    const unsigned across = (n + REACH + BC - 1) / BC, below = (m + BR - 1) / BR;
    const bool flat = below <= MAX_FLAT && below < across;
    const unsigned many = flat ? below : across, quotient = blockIdx.x / many, rest = blockIdx.x - quotient * many;
    const int row0 = (flat ? rest : quotient) * BR, column0 = (flat ? quotient : rest) * BC;

    OperandX x;
    OperandY y;
    x.fetch(x_tile, mx, md, row0, column0, m, n);
    y.fetch(y_tile, my, md, row0, column0, m, n);
    if constexpr (COPIES) ptx::cp_async_commit();
    x.store_shared(mx, x_tile, row0, column0, m, n);
    y.store_shared(my, y_tile, row0, column0, m, n);
    if constexpr (COPIES) ptx::cp_async_wait<0>();
    if constexpr (Config::SHARED_BYTES > 0) __syncthreads();

    const DVectors own(row0, column0);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const int r = own.row + s * ROWS, c = own.column - DVectors::shift(md, r);
      if (r >= m) continue;
      Vector out = x.at(x_tile, s, r - row0, c - column0);
      if constexpr (!PLAIN && Config::Y_MODE == ABSENT) {
        out.scale(args.alpha);
      } else if constexpr (!PLAIN) {
        out.blend(args.alpha, args.beta, y.at(y_tile, s, r - row0, c - column0));
      }
      // Single elements may have any column stride; vectors are contiguous.
      Scalar* const to = const_cast<Scalar*>(V == 1 ? md.at(r, c) : md.in_row(r, c));
      if (c >= 0 && c + V <= n) {
        out.store(to);
      } else if constexpr (UNROLL_EDGES) {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (c + i >= 0 && c + i < n) to[i] = out.element(i);
      } else {
#pragma unroll 1
        for (int i = 0; i < V; ++i) {
          if (c + i >= 0 && c + i < n) to[i] = out.first();
          out.push(Scalar{});
        }
      }
    }
  }
};

}  // namespace matmill
