// D = alpha * X + beta * Y for matrices that lie any way, above all where X's columns are contiguous and D's rows are.
//
//   X, crossed ── 16-byte loads down W columns ── turned in registers ──▶ words in shared memory ──┐ barrier
//   Y, along   ── 16-byte loads along D's rows ──▶ registers ──────────────────────────────────────┴─▶ 16-byte stores
//
// Either operand may lie along or across. A block makes BR rows by BC columns of D. All its loads are issued before
// anything waits for one of them.
//
// Elements of 1 or 2 bytes move at the speed of memory only if few instructions are spent on each. So the W elements of
// a row that a word of 4 bytes holds travel through shared memory together: a thread loads the same rows of W columns
// side by side and exchanges bytes among its registers. And places outside the matrix are moved to its edge, where the
// load costs nothing, rather than asked for one by one.
//
// Rows need not be aligned. Where they are not (SHIFTED), a block's part of each row of D is moved to the left until it
// starts on START elements, 16 bytes or more, so that D is stored, and Y loaded, in whole vectors whatever the pitch, and
// sectors need not be shared between blocks; each block then needs HALO
// columns of X more. Columns of X that are not aligned (MOVED), and rows of an operand that start elsewhere than D's
// vectors (ASKEW), are copied to shared memory as they lie, see lines.cuh. Only vectors of D that stick out of a row, and
// vectors that stick out of all that lies between an operand's first and last element, go element by element.
#pragma once

#include "matmill/transpose/staging.cuh"
#include "matmill/ptx/order.cuh"

// Offsets: a matrix may hold more than 2^31 elements.
using Index = long long;

namespace matmill {

enum { ALONG, CROSSED, MOVED, SINGLE, ABSENT, ASKEW };

template <bool, class A, class B>
struct Either {
  using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using Type = B;
};

template <class Scalar, class Config>
struct Turn {
  using Acc = typename NumberOf<Scalar>::Acc;
  static constexpr int V = Config::V, BR = Config::BR, BC = Config::BC, THREADS = Config::THREADS;
  static constexpr int SIZE = sizeof(Scalar), WARPS = THREADS / 32;
  using Vector = matmill::Vector<Scalar, V>;
  using Packed = typename Vector::Packed;
  using Word = typename Vector::Word;
  static constexpr int W = Vector::W, WORDS = Vector::WORDS;

  // Elements of a vector that sticks out of a row are told apart at once; more than so many would be most of the code.
  static constexpr bool FEW = V <= 8;
  static constexpr unsigned MOST_FLAT = 8;  // rows of tiles

  // Rows of D start at multiples of SHIFTED elements behind a multiple of START; 0 where they start at one of V.
  static constexpr bool SHIFTED = Config::SHIFTED != 0, PLAIN = Config::PLAIN != 0;
  static constexpr bool APART = SHIFTED && Config::SHIFTED % W != 0;  // words of D begin inside words of X
  static constexpr int START = Config::START, REACH = SHIFTED ? START - Config::SHIFTED : 0;
  static constexpr int HALO = (REACH + W - 1) / W * W;

  // Lanes that read neighbouring vectors of a row, 128 bytes in all: with four rows of eight vectors a warp meets every
  // bank of shared memory.
  static constexpr int VECTORS = BC / V, LINE = 128 / (V * SIZE), MOST = VECTORS < 32 ? VECTORS : 32;
  static constexpr int LANES = LINE < MOST ? LINE : MOST, BESIDE = VECTORS / LANES;
  static constexpr int ROWS = THREADS / VECTORS, SLOTS = BR / ROWS;
  static_assert(START % V == 0 && BC % START == 0, "parts of rows start on whole vectors, all alike");
  static_assert(VECTORS * V == BC && LANES * BESIDE == VECTORS && WARPS % BESIDE == 0, "warps must cover rows");
  static_assert(ROWS * VECTORS == THREADS && SLOTS * ROWS == BR, "passes of all threads must cover the tile");

  // `count` strides. The product of two 32-bit integers is added to an address by one instruction, that of 64-bit ones by
  // five; and what the compiler has made 64 bits wide once it does not take for less.
  static __device__ __forceinline__ Index times(int count, int stride) {
    Index product;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(count), "r"(stride));
    return product;
  }
  static __device__ __forceinline__ Index times(int count, Index stride) { return count * stride; }

  // One matrix of the batch (grid.y): where it lies and its strides in bytes, as D's rows and columns count them, and how
  // far the batch's matrices are apart.
  using Stride = typename Either<Config::FAR != 0, Index, int>::Type;
  struct Matrix {
    const unsigned char* first;
    Stride row, column;
    Index batch;

    __device__ __forceinline__ Matrix(const Scalar* start, Index row, Index column, Index batch)
        : first(reinterpret_cast<const unsigned char*>(start + blockIdx.y * batch)),
          row(row * SIZE),
          column(column * SIZE),
          batch(batch * SIZE) {}
    // Of m rows and n columns: all from the first element in memory to the last one may be read, whatever lies there.
    // Past a line's end lies another line, and past a matrix another one.
    __device__ __forceinline__ Span span(int m, int n) const {
      const Index down = times(m - 1, row), across = times(n - 1, column);
      return {first + min(down, Index(0)) + min(across, Index(0)),
              first + max(down, Index(0)) + max(across, Index(0)) + SIZE, -Index(blockIdx.y) * batch,
              Index(gridDim.y - 1 - blockIdx.y) * batch};
    }
    __device__ __forceinline__ const Scalar* at(int r, int c) const {
      return reinterpret_cast<const Scalar*>(first + times(r, row) + times(c, column));
    }
    // The same where rows, or columns, lie side by side.
    __device__ __forceinline__ const Scalar* in_column(int r, int c) const {
      return reinterpret_cast<const Scalar*>(first + times(r, SIZE) + times(c, column));
    }
    __device__ __forceinline__ const Scalar* in_row(int r, int c) const {
      return reinterpret_cast<const Scalar*>(first + times(r, row) + times(c, SIZE));
    }
    // Elements from the last multiple of so many in memory to the one at (r, c).
    template <int MULTIPLE>
    __device__ __forceinline__ int behind(int r, int c) const {
      const unsigned low = unsigned(reinterpret_cast<unsigned long long>(first));
      return (low + unsigned(r) * unsigned(row) + unsigned(c) * unsigned(column)) / SIZE % MULTIPLE;
    }
  };

  // Which vectors of D a thread makes: the same column in every ROWS-th row.
  struct Place {
    int row, column;  // of the first one, in D

    __device__ __forceinline__ Place(int row0, int column0) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      row = row0 + lane / LANES + warp / BESIDE * (32 / LANES);
      column = column0 + (lane % LANES + warp % BESIDE * LANES) * V;
    }
    // How far row r's part of the tile is moved to the left.
    static __device__ __forceinline__ int shift(const Matrix& D, int r) {
      return SHIFTED ? D.template behind<START>(r, 0) : 0;
    }
  };

  // Whether a row of n columns has something of a vector from column c on.
  static __device__ __forceinline__ bool touches(int c, int n) { return unsigned(c + V - 1) < unsigned(n + V - 1); }

  // Whether a whole vector of X may be loaded although it sticks out of a row: what lies beside the row is not used. Not
  // where X is D, whose other elements other threads write meanwhile.
  static __device__ __forceinline__ bool spares(const Matrix& X, const Matrix& D, const Scalar* from, int m, int n) {
    const unsigned char* const low = reinterpret_cast<const unsigned char*>(from);
    return X.first != D.first && X.span(m, n).holds(low, low + V * SIZE);
  }

  // An operand that lies along D's rows, loaded WIDTH elements at a time into registers.
  template <int WIDTH>
  struct Along {
    static constexpr int BYTES = 0;
    Vector values[SLOTS];

    __device__ __forceinline__ void fetch(unsigned char*, const Matrix& X, const Matrix& D, int row0, int column0, int m,
                                          int n) {
      const Place place(row0, column0);
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) {
        const int r = place.row + s * ROWS, c = place.column - Place::shift(D, r);
        if (r >= m || (WIDTH > 1 && !touches(c, n))) continue;
        if ((c >= 0 && c + V <= n) || (WIDTH > 1 && spares(X, D, X.in_row(r, c), m, n))) {
#pragma unroll
          for (int i = 0; i < V; i += WIDTH) {
            const Scalar* const from = WIDTH > 1 ? X.in_row(r, c + i) : X.at(r, c + i);
            copy<WIDTH>(reinterpret_cast<Scalar*>(values[s].words) + i, from);
          }
        } else if constexpr (FEW && WIDTH == 1) {
          values[s] = Vector::gathered([&](int i) { return c + i >= 0 && c + i < n ? *X.at(r, c + i) : Scalar{}; });
        } else {
#pragma unroll 4
          for (int i = 0; i < V; ++i) {
            values[s].push(c + i >= 0 && c + i < n ? *X.at(r, c + i) : Scalar{});
          }
        }
      }
    }
    __device__ __forceinline__ void place(const Matrix&, unsigned char*, int, int, int, int) const {}
    __device__ __forceinline__ Vector at(const unsigned char*, int s, int, int) const { return values[s]; }
  };

  // The same where none of D's vectors starts where one of its own does, as a rule. A thread reads what others copied,
  // and so this never lies where D does.
  struct Askew {
    using Rows = Lines<Scalar, THREADS, BR, BC + REACH>;
    static constexpr int BYTES = Rows::BYTES;
    Rows rows;

    __device__ __forceinline__ void fetch(unsigned char* sheet, const Matrix& X, const Matrix&, int row0, int column0,
                                          int m, int n) {
      rows.fetch(sheet,
                 typename Rows::template Source<Stride>{
                     reinterpret_cast<const unsigned char*>(X.in_row(row0, column0 - REACH)), X.span(m, n), X.row,
                     row0, m, column0 - REACH, n},
                 [](int count, Stride stride) { return times(count, stride); });
    }
    __device__ __forceinline__ void place(const Matrix&, unsigned char*, int, int, int, int) const {}
    __device__ __forceinline__ Vector at(const unsigned char*, int, int r, int column) const {
      return rows.along(r, column + REACH);
    }
  };

  // A turned tile of COLUMNS columns. Its rows are those of D's part of the block, its columns the block's behind HALO
  // others.
  //
  // The word of row r and columns g W to g W + W - 1 lies at g PITCH + r + r / 32 * PAD. PITCH is odd and PAD less than
  // the distance of two vectors: as a warp reads, so it writes neighbouring vectors of neighbouring columns of words,
  // each to a bank of its own.
  struct Sheet {
    static constexpr int COLUMNS = BC + HALO, PAD = V < 8 ? V / 2 : 4, PITCH = (BR + (BR - 1) / 32 * PAD) | 1;
    static constexpr int BYTES = (PITCH * (COLUMNS / W) * int(sizeof(Word)) + 15) / 16 * 16;

    static __device__ __forceinline__ int offset(int group, int r) { return group * PITCH + r + r / 32 * PAD; }
    // The vector of row r that begins at a column; both are relative to the block's first ones.
    static __device__ __forceinline__ Vector read(const unsigned char* sheet, int r, int column) {
      const unsigned begin = column + HALO;
      const Word* const from = reinterpret_cast<const Word*>(sheet) + offset(begin / W, r);
      Vector v;
      if constexpr (APART) {
        const unsigned inside = begin % W;
        unsigned word = from[0];
#pragma unroll
        for (int j = 0; j < WORDS; ++j) {
          // The last word is another one only if the vector reaches into it.
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

  // The nearest column of a matrix of n columns.
  static __device__ __forceinline__ int nearest(int column, int n) { return max(0, min(column, n - 1)); }

  // An operand whose columns are contiguous and start on whole vectors: a thread loads the same V rows of W columns, and
  // stores V words of W elements.
  struct Turned : Sheet {
    using Sheet::COLUMNS;
    static constexpr int GROUPS = COLUMNS / W, DEEP = BR / V;  // of columns; vectors down one
    static constexpr int DOWN = DEEP < LINE && DEEP < 32 ? DEEP : LINE < 32 ? LINE : 32, BELOW = DEEP / DOWN;
    static constexpr int PASS = THREADS / DEEP;
    static constexpr int ROUNDS = (GROUPS + PASS - 1) / PASS;
    static_assert(BR % V == 0 && BELOW * DOWN == DEEP && PASS * DEEP == THREADS && WARPS % BELOW == 0, "whole warps");
    Vector values[ROUNDS][W];

    __device__ __forceinline__ void fetch(unsigned char*, const Matrix& X, const Matrix&, int row0, int column0, int m,
                                          int n) {
      // Below the last row, vectors that hold it, which are loaded anyway.
      const int r = min(row0 + vector() * V, (m - 1) / V * V);
      // All that lies before the last element may be read: past a column's end lies the next column.
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

    __device__ __forceinline__ void place(const Matrix&, unsigned char* sheet, int, int, int, int) const {
      Word* const to = reinterpret_cast<Word*>(sheet) + Sheet::offset(group(0), vector() * V);
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        if (!present(s)) continue;
#pragma unroll
        for (int j = 0; j < WORDS; ++j) {
          Word words[W], rows[W];
#pragma unroll
          for (int w = 0; w < W; ++w) words[w] = values[s][w].words[j];
          Packed::turn(rows, words);
#pragma unroll
          for (int w = 0; w < W; ++w) to[s * PASS * Sheet::PITCH + j * W + w] = rows[w];
        }
      }
    }

    __device__ __forceinline__ Vector at(const unsigned char* sheet, int, int r, int column) const {
      return Sheet::read(sheet, r, column);
    }

   private:
    // This thread's vector of a column, and its group of columns in round s.
    static __device__ __forceinline__ int vector() {
      return threadIdx.x % 32 % DOWN + threadIdx.x / 32 % BELOW * DOWN;
    }
    static __device__ __forceinline__ int group(int s) {
      return threadIdx.x % 32 / DOWN + threadIdx.x / 32 / BELOW * (32 / DOWN) + s * PASS;
    }
    static __device__ __forceinline__ bool present(int s) {
      return GROUPS % PASS == 0 || s + 1 < ROUNDS || group(s) < GROUPS;
    }
    // Column w of the group, or the nearest that exists.
    static __device__ __forceinline__ int column(int s, int w, int column0, int n) {
      return nearest(column0 - HALO + group(s) * W + w, n);
    }
  };

  // An operand whose columns are contiguous and start anywhere: they are copied as they lie, and a vector of D is gathered
  // element by element. To take vectors out of the two in which each lies took 86 slots for each of them.
  struct Moved {
    using Columns = Lines<Scalar, THREADS, BC + REACH, BR>;
    static constexpr int BYTES = Columns::BYTES;
    Columns columns;

    __device__ __forceinline__ void fetch(unsigned char* sheet, const Matrix& X, const Matrix&, int row0, int column0,
                                          int m, int n) {
      columns.fetch(sheet,
                    typename Columns::template Source<Stride>{
                        reinterpret_cast<const unsigned char*>(X.in_column(row0, column0 - REACH)), X.span(m, n),
                        X.column, column0 - REACH, n, row0, m},
                    [](int count, Stride stride) { return times(count, stride); });
    }
    __device__ __forceinline__ void place(const Matrix&, unsigned char*, int, int, int, int) const {}
    __device__ __forceinline__ Vector at(const unsigned char*, int, int r, int column) const {
      return columns.across(column + REACH, r);
    }
  };

  // An operand that is contiguous in neither dimension: loaded and stored element by element.
  struct Single : Sheet {
    static constexpr int ELEMENTS = Sheet::COLUMNS * BR, ROUNDS = (ELEMENTS + THREADS - 1) / THREADS;
    Scalar values[ROUNDS];

    __device__ __forceinline__ void fetch(unsigned char*, const Matrix& X, const Matrix&, int row0, int column0, int m,
                                          int n) {
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        const int item = threadIdx.x + s * THREADS, c = nearest(column0 - HALO + item / BR, n);
        if (item < ELEMENTS) values[s] = *X.at(min(row0 + item % BR, m - 1), c);
      }
    }

    __device__ __forceinline__ void place(const Matrix&, unsigned char* sheet, int, int, int, int) const {
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        const unsigned item = threadIdx.x + s * THREADS, c = item / BR;
        Scalar* const to = reinterpret_cast<Scalar*>(sheet) + Sheet::offset(c / W, item % BR) * W + c % W;
        if (item < ELEMENTS) *to = values[s];
      }
    }

    __device__ __forceinline__ Vector at(const unsigned char* sheet, int, int r, int column) const {
      return Sheet::read(sheet, r, column);
    }
  };

  struct Absent {
    static constexpr int BYTES = 0;
    __device__ __forceinline__ void fetch(unsigned char*, const Matrix&, const Matrix&, int, int, int, int) {}
    __device__ __forceinline__ void place(const Matrix&, unsigned char*, int, int, int, int) const {}
  };

  template <int MODE, int WIDTH>
  struct Operand {
    using Type = Along<WIDTH>;
  };
  template <int WIDTH>
  struct Operand<CROSSED, WIDTH> {
    using Type = Turned;
  };
  template <int WIDTH>
  struct Operand<MOVED, WIDTH> {
    using Type = Moved;
  };
  template <int WIDTH>
  struct Operand<ASKEW, WIDTH> {
    using Type = Askew;
  };
  template <int WIDTH>
  struct Operand<SINGLE, WIDTH> {
    using Type = Single;
  };
  template <int WIDTH>
  struct Operand<ABSENT, WIDTH> {
    using Type = Absent;
  };
  using OperandX = typename Operand<Config::X_MODE, Config::X_WIDTH>::Type;
  using OperandY = typename Operand<Config::Y_MODE, Config::Y_WIDTH>::Type;
  static_assert(OperandX::BYTES + OperandY::BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");
  // Whether anything is copied to shared memory without registers.
  static constexpr bool copied(int mode) { return mode == MOVED || mode == ASKEW; }
  static constexpr bool COPIES = copied(Config::X_MODE) || copied(Config::Y_MODE);

  // One block's part of D (grid.x), of one matrix of the batch (grid.y). Y and D may be the same memory. `shared`
  // holds SHARED_BYTES, aligned to 16.
  static __device__ __forceinline__ void run(unsigned char* shared, const Args& args) {
    ptx::begin();
    unsigned char* const x_sheet = shared;
    unsigned char* const y_sheet = shared + OperandX::BYTES;
    const int m = args.m, n = args.n;
    const Matrix mx(args.X, args.x_row, args.x_column, args.x_batch), my(args.Y, args.y_row, args.y_column, args.y_batch),
        md(args.D, args.d_row, args.d_column, args.d_batch);

    // Along D's rows: blocks that run at the same time write neighbouring pieces of them. Where D has few rows and long
    // ones, down its columns, whose parts lie side by side in X.
    const unsigned across = (n + REACH + BC - 1) / BC, below = (m + BR - 1) / BR;
    const bool flat = below <= MOST_FLAT && below < across;
    const unsigned many = flat ? below : across, quotient = blockIdx.x / many, rest = blockIdx.x - quotient * many;
    const int row0 = (flat ? rest : quotient) * BR, column0 = (flat ? quotient : rest) * BC;

    OperandX x;
    OperandY y;
    x.fetch(x_sheet, mx, md, row0, column0, m, n);
    y.fetch(y_sheet, my, md, row0, column0, m, n);
    if constexpr (COPIES) ptx::cp_async_commit();
    x.place(mx, x_sheet, row0, column0, m, n);
    y.place(my, y_sheet, row0, column0, m, n);
    if constexpr (COPIES) ptx::cp_async_wait<0>();
    if constexpr (Config::SHARED_BYTES > 0) __syncthreads();

    const Place place(row0, column0);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const int r = place.row + s * ROWS, c = place.column - Place::shift(md, r);
      if (r >= m) continue;
      Vector out = x.at(x_sheet, s, r - row0, c - column0);
      if constexpr (!PLAIN && Config::Y_MODE == ABSENT) {
        out.scale(args.alpha);
      } else if constexpr (!PLAIN) {
        out.blend(args.alpha, args.beta, y.at(y_sheet, s, r - row0, c - column0));
      }
      // Single elements lie any distance apart, vectors side by side.
      Scalar* const to = const_cast<Scalar*>(V == 1 ? md.at(r, c) : md.in_row(r, c));
      if (c >= 0 && c + V <= n) {
        out.store(to);
      } else if constexpr (FEW) {
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
