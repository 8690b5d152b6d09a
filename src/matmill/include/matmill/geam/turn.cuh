// D = alpha * X + beta * Y for matrices that lie any way, above all where X's columns are contiguous and D's rows are.
//
//   X, crossed ── 16-byte loads down its columns ──▶ shared [BC + HALO][BR + 1] ──┐ barrier
//   Y, along   ── 16-byte loads along D's rows ──▶ registers ─────────────────────┴─▶ 16-byte stores along D's rows
//
// Either operand may lie along or across. A block makes BR rows by BC columns of D. All its loads are issued before
// anything waits for one of them.
//
// Rows need not be aligned. Where they are not (SHIFTED), a block's part of each row of D is moved to the left until it
// starts on 16 bytes, so that D is stored, and Y loaded, in whole vectors whatever the pitch; each block then needs up
// to V - 1 columns of X more (HALO). X's columns are treated alike: loads start on 16 bytes, up to V - 1 elements before
// the block's first row. Only vectors that stick out of the matrix go element by element.
//
// BR + 1 is odd: neither the writes down X's columns nor the reads across them meet in a bank.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/word.cuh"

// Offsets: a matrix may hold more than 2^31 elements.
using Index = long long;

namespace matmill {

enum { ALONG, CROSSED, ABSENT };

template <class Scalar, class Config>
struct Turn {
  using Number = NumberOf<Scalar>;
  using Acc = typename Number::Acc;
  static constexpr int V = Config::V, BR = Config::BR, BC = Config::BC, THREADS = Config::THREADS, GROUP = 8;
  static constexpr bool SHIFTED = Config::SHIFTED != 0, PLAIN = Config::PLAIN != 0;
  static constexpr int HALO = SHIFTED ? V - 1 : 0;
  static constexpr int VECTORS = BC / V, ITEMS = BR * VECTORS, SLOTS = ITEMS / THREADS;
  static_assert(BC % V == 0 && BR % V == 0 && ITEMS % THREADS == 0, "whole vectors, and as many for each thread");
  static_assert(BR % 2 == 0, "BR + 1 is odd");

  // V elements in one or several words.
  struct alignas(V * sizeof(Scalar)) Vector {
    Scalar x[V];
  };

  // How many elements behind the last multiple of 16 bytes p is.
  static __device__ __forceinline__ int behind(const Scalar* p) {
    return int(reinterpret_cast<unsigned long long>(p) / sizeof(Scalar) % V);
  }

  // One matrix: where it lies and its strides, as D's rows and columns count them.
  struct Matrix {
    const Scalar* first;
    Index row, column;

    __device__ __forceinline__ const Scalar* at(Index r, Index c) const { return first + r * row + c * column; }
  };

  // The part of D's row r that a block makes: V columns from `column` on for each of VECTORS vectors.
  struct Part {
    int row, column;
  };

  static __device__ __forceinline__ Part part_of(const Matrix& D, int item, int row0, int column0) {
    const int row = row0 + item / VECTORS;
    const int shift = SHIFTED ? behind(D.at(row, 0)) : 0;
    return {row, column0 - shift + item % VECTORS * V};
  }

  // An operand that lies along D's rows, loaded WIDTH elements at a time into registers.
  template <int WIDTH>
  struct Along {
    static constexpr int BYTES = 0;
    Vector values[SLOTS];

    __device__ __forceinline__ void fetch(const Matrix& X, const Matrix& D, int row0, int column0, int m, int n) {
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) {
        const Part part = part_of(D, threadIdx.x + s * THREADS, row0, column0);
        if (part.row >= m) continue;
        if (part.column >= 0 && part.column + V <= n) {
#pragma unroll
          for (int i = 0; i < V; i += WIDTH) copy<WIDTH>(&values[s].x[i], X.at(part.row, part.column + i));
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) {
            const int c = part.column + i;
            if (c >= 0 && c < n) values[s].x[i] = *X.at(part.row, c);
          }
        }
      }
    }

    __device__ __forceinline__ void place(const Matrix&, Scalar*, int, int, int) const {}
    __device__ __forceinline__ Scalar at(const Scalar*, int s, int i, int, int) const { return values[s].x[i]; }
  };

  // An operand whose columns are contiguous: loaded down them, and turned in shared memory. WIDTH is V, or 1 where not
  // even its columns are contiguous.
  template <int WIDTH>
  struct Crossed {
    static constexpr int PITCH = BR + 1, COLUMNS = BC + HALO;
    static constexpr bool MOVED = SHIFTED && WIDTH > 1;
    static constexpr int DEEP = BR / WIDTH + (MOVED ? 1 : 0);  // loads down one column
    static constexpr int LOADS = COLUMNS * DEEP, ROUNDS = (LOADS + THREADS - 1) / THREADS;
    static constexpr int BYTES = (PITCH * COLUMNS * int(sizeof(Scalar)) + 15) / 16 * 16;

    struct alignas(WIDTH * sizeof(Scalar)) Load {
      Scalar x[WIDTH];
    };
    Load values[ROUNDS];

    __device__ __forceinline__ void fetch(const Matrix& X, const Matrix&, int row0, int column0, int m, int n) {
      each(X, row0, column0, n, [&](int s, int row, int column, int) {
        if (WIDTH > 1 && row >= 0 && row + WIDTH <= m) {
          copy<WIDTH>(values[s].x, X.at(row, column));
        } else {
#pragma unroll
          for (int i = 0; i < WIDTH; ++i)
            if (row + i >= 0 && row + i < m) values[s].x[i] = *X.at(row + i, column);
        }
      });
    }

    __device__ __forceinline__ void place(const Matrix& X, Scalar* shared, int row0, int column0, int n) const {
      each(X, row0, column0, n, [&](int s, int row, int, int place) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          const int r = row - row0 + i;
          if (!MOVED || (r >= 0 && r < BR)) shared[place * PITCH + r] = values[s].x[i];
        }
      });
    }

    // row and column: relative to the block's first ones.
    __device__ __forceinline__ Scalar at(const Scalar* shared, int, int, int row, int column) const {
      return shared[(column + HALO) * PITCH + row];
    }

   private:
    // Calls use(round, first row, column, place of the column) for each of this thread's loads.
    template <class Use>
    static __device__ __forceinline__ void each(const Matrix& X, int row0, int column0, int n, Use use) {
#pragma unroll
      for (int s = 0; s < ROUNDS; ++s) {
        const int item = threadIdx.x + s * THREADS, place = item / DEEP, column = column0 - HALO + place;
        if ((LOADS % THREADS != 0 && item >= LOADS) || (HALO > 0 && column < 0) || column >= n) continue;
        const int shift = MOVED ? behind(X.at(row0, column)) : 0;
        use(s, row0 - shift + item % DEEP * WIDTH, column, place);
      }
    }
  };

  struct Absent {
    static constexpr int BYTES = 0;
    __device__ __forceinline__ void fetch(const Matrix&, const Matrix&, int, int, int, int) {}
    __device__ __forceinline__ void place(const Matrix&, Scalar*, int, int, int) const {}
    __device__ __forceinline__ Scalar at(const Scalar*, int, int, int, int) const { return Scalar{}; }
  };

  template <int MODE, int WIDTH>
  struct Operand {
    using Type = Along<WIDTH>;
  };
  template <int WIDTH>
  struct Operand<CROSSED, WIDTH> {
    using Type = Crossed<WIDTH>;
  };
  template <int WIDTH>
  struct Operand<ABSENT, WIDTH> {
    using Type = Absent;
  };
  using OperandX = typename Operand<Config::X_MODE, Config::X_WIDTH>::Type;
  using OperandY = typename Operand<Config::Y_MODE, Config::Y_WIDTH>::Type;
  static_assert(OperandX::BYTES + OperandY::BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");

  // One block's part of D (grid.x), of one matrix of the batch (grid.y). Y and D may be the same memory. `shared`
  // holds SHARED_BYTES, aligned to 16.
  static __device__ __forceinline__ void run(unsigned char* shared, const Scalar* X, const Scalar* Y, Scalar* D, int m,
                                             int n, Index x_row, Index x_column, Index x_batch, Index y_row,
                                             Index y_column, Index y_batch, Index d_row, Index d_column, Index d_batch,
                                             Acc alpha, Acc beta) {
    Scalar* const x_shared = reinterpret_cast<Scalar*>(shared);
    Scalar* const y_shared = reinterpret_cast<Scalar*>(shared + OperandX::BYTES);
    const Index batch = blockIdx.y;
    const Matrix mx{X + batch * x_batch, x_row, x_column}, my{Y + batch * y_batch, y_row, y_column};
    const Matrix md{D + batch * d_batch, d_row, d_column};

    // Bands of GROUP parts down D: blocks that run at the same time then read neighbouring pieces of X's columns and
    // write neighbouring pieces of D's rows.
    const int down = (m + BR - 1) / BR, across = (n + HALO + BC - 1) / BC;
    const int band = blockIdx.x / (GROUP * across), within = blockIdx.x - band * GROUP * across;
    const int height = min(GROUP, down - band * GROUP);
    const int row0 = (band * GROUP + within % height) * BR, column0 = within / height * BC;

    OperandX x;
    OperandY y;
    x.fetch(mx, md, row0, column0, m, n);
    y.fetch(my, md, row0, column0, m, n);
    x.place(mx, x_shared, row0, column0, n);
    y.place(my, y_shared, row0, column0, n);
    if constexpr (Config::SHARED_BYTES > 0) __syncthreads();

#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const Part part = part_of(md, threadIdx.x + s * THREADS, row0, column0);
      if (part.row >= m) continue;
      const auto made = [&](int i) {
        const int r = part.row - row0, c = part.column + i - column0;
        const Scalar from_x = x.at(x_shared, s, i, r, c);
        if constexpr (PLAIN) {
          return from_x;
        } else {
          const Acc wide = Number::up(from_x);
          if constexpr (Config::Y_MODE == ABSENT) {
            return Number::down(alpha * wide);
          } else {
            return Number::down(blend(alpha, wide, beta, Acc(Number::up(y.at(y_shared, s, i, r, c)))));
          }
        }
      };
      Scalar* const to = D + batch * d_batch + part.row * d_row + part.column * d_column;
      if (part.column >= 0 && part.column + V <= n) {
        Vector out;
#pragma unroll
        for (int i = 0; i < V; ++i) out.x[i] = made(i);
        copy<V>(to, out.x);
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (part.column + i >= 0 && part.column + i < n) to[i * d_column] = made(i);
      }
    }
  }
};

}  // namespace matmill
