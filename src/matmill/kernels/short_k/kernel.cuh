// D = activation(alpha * A * B + beta * C + bias) where k is short: a block stages all of k for a work tile at once.
//
//   global A, B ── copies ──▶ shared stage ──▶ registers: sums ──▶ shared D ── 16-byte stores ──▶ global D
//
// A work tile is `group` whole products of a batch, or bm x bn outputs of one product. Blocks are persistent. With two
// stages the copies of the next work tile are in flight while this one is computed:
//
//   wait for the stage, barrier ─▶ issue the next work tile's copies ─▶ sums ─▶ shared D, barrier ─▶ store D
//
// The first barrier publishes the stage; it also proves that all threads have left the other stage and the shared D. With
// one stage the next copies are issued after the second barrier. keep_b: all work tiles have the same B, which is copied
// once. A_SHIFTED, B_SHIFTED, D_SHIFTED: a work tile's run of memory may start off 16 bytes, as those of odd products do;
// it then stands as far behind 16 bytes in shared memory. D_STAGED: a work tile's D goes through shared memory to be
// stored in vectors: as one run, where it is contiguous in memory, or row by row. Rows that start off 16 bytes stand as
// far behind them in shared memory, too.
#include "kernels/shared/result.cuh"
#include "kernels/shared/store_runs.cuh"
#include "matmill/ptx/dependent_launch.cuh"
#include "kernels/short_k/copy.cuh"
#include "kernels/short_k/mma.cuh"
#include "kernels/short_k/simt.cuh"

constexpr int THREADS = Config::THREADS;
constexpr bool MMA = sizeof(Scalar) == 2, A_K_INNER = Config::A_K_INNER != 0, B_K_INNER = Config::B_K_INNER != 0;
constexpr bool TWO_STAGES = Config::STAGES == 2, D_STAGED = Config::D_STAGED != 0;
enum { ONE_RUN = 1, BY_ROWS, SHIFTED_ROWS };
using Out = matmill::ResultOf<Scalar, Config::FLOAT32_D != 0>::Type;
using Result = matmill::GemmResult<Scalar, Out, Config>;
using CopyA = matmill::RunCopy<Scalar, THREADS, Config::A_ONE_RUN != 0, Config::A_SHIFTED != 0, Config::A_IRREGULAR != 0,
                               Config::A_BY_REGISTERS != 0>;
using CopyB = matmill::RunCopy<Scalar, THREADS, Config::B_ONE_RUN != 0, Config::B_SHIFTED != 0, Config::B_IRREGULAR != 0,
                               Config::B_BY_REGISTERS != 0>;

// Neighbouring columns of D that a thread computes, of which D_VEC are stored at once.
constexpr int COLUMNS = MMA ? 2 : B_K_INNER ? 1 : Config::B_VEC;

// Which work tile: its column and row of tiles, and its group of products.
struct Place {
  int across, down, group;
};

// The part of a batch's products, or of one product's outputs, that is computed at a time.
struct Work {
  int product, products, row, column, rows, columns;
};

// Rows of D in shared memory, `pitch` elements apart, which start as far behind 16 bytes as they do in D: the first one
// `first` elements behind them, and others `stride` elements apart.
struct ShiftedRows {
  static constexpr bool SHIFTED = true;
  unsigned start, first, stride;
  int pitch;

  __device__ __forceinline__ int element(int row, int column) const {
    return row * pitch + int((first + row * stride) % (16 / sizeof(Out))) + column;
  }

  __device__ __forceinline__ unsigned address(int row, int column) const {
    return start + element(row, column) * int(sizeof(Out));
  }

  __device__ __forceinline__ int distance(int rows) const { return rows * pitch * int(sizeof(Out)); }
};

// Calls store(product, row, column, sums) for COLUMNS outputs of neighbouring columns at a time, which are counted from
// the work tile's first.
template <class Config, class Scalar, class Store>
__device__ __forceinline__ void multiply(const Scalar* a, const Scalar* b, const Work& work, const Args& args,
                                         Store store) {
  constexpr int WORKERS = MMA ? THREADS / 32 : THREADS;
  const matmill::Divisor per_product{args.units_down * args.units_across, args.units_magic};
  const matmill::Divisor across{args.units_across / (Config::QUADS ? 2 : 1), args.across_magic};
  for (int unit = MMA ? threadIdx.x / 32 : threadIdx.x; unit < work.products * per_product.by; unit += WORKERS) {
    const int product = per_product.quotient(unit), own = unit - product * per_product.by;
    int down, right;
    if constexpr (Config::QUADS) {
      // Four threads take 2 x 2 neighbours: lane ^ 1 has the same rows and lane ^ 2 the same columns. The hardware then
      // merges the quarter-warps of a 16-byte read in pairs (matmill.emulator.memory.banks).
      const int quad = own / 4, row = across.quotient(quad);
      down = 2 * row + own % 4 / 2;
      right = 2 * (quad - row * across.by) + own % 2;
    } else {
      down = across.quotient(own);
      right = own - down * across.by;
    }
    const Scalar* const a_own = a + product * args.a_product;
    const Scalar* const b_own = b + product * args.b_product;  // 0 where B stays
    if constexpr (sizeof(Scalar) == 2) {
      constexpr int MT = Config::TM / 16, NT = Config::TN / 8;
      using OperandA = matmill::WarpOperand<Scalar, 2 * MT, A_K_INNER, Config::A_VEC>;
      using OperandB = matmill::WarpOperand<Scalar, NT, B_K_INNER, Config::B_VEC>;
      const int lane = threadIdx.x % 32, row = down * Config::TM, column = right * Config::TN;
      matmill::WarpProduct<Scalar, MT, NT, OperandA, OperandB> tile;
      tile.run(OperandA(a_own, args.a_pitch, row, work.rows), OperandB(b_own, args.b_pitch, column, work.columns),
               args.k);
#pragma unroll
      for (int i = 0; i < 2 * MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          store(product, row + lane / 4 + 8 * i, column + 8 * j + lane % 4 * 2, tile.sums[i / 2][j].x + i % 2 * 2);
        }
    } else {
      constexpr int TM = Config::TM, TN = Config::TN;
      using OperandA = matmill::ThreadOperand<Scalar, TM, A_K_INNER, Config::A_VEC>;
      using OperandB = matmill::ThreadOperand<Scalar, TN, B_K_INNER, Config::B_VEC>;
      matmill::ThreadTile<Scalar, TM, TN, OperandA, OperandB> tile;
      tile.run(OperandA(a_own, args.a_pitch, down, args.units_down, work.rows),
               OperandB(b_own, args.b_pitch, right, args.units_across, work.columns), args.k);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += COLUMNS) {
          store(product, OperandA::outer(i, down, args.units_down), OperandB::outer(j, right, args.units_across),
                tile.sums[i] + j);
        }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, Config::BLOCKS_PER_SM) short_k(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char shared[];
  if constexpr (Config::FILL) {  // vectors of rows or columns reach past the last ones
    for (int v = threadIdx.x; v * 16 < d_first; v += THREADS) reinterpret_cast<uint4*>(shared)[v] = uint4{0, 0, 0, 0};
    __syncthreads();
  }
  matmill::ptx::wait_then_trigger();
  const Args args = ARGUMENTS;
  const CopyA copy_a({A_K_INNER ? a_row : a_column, A_K_INNER ? a_column : a_row, a_beyond, a_runs, a_pitch, a_width},
                     {a_run_copies, a_copies_magic});
  const CopyB copy_b({B_K_INNER ? b_column : b_row, B_K_INNER ? b_row : b_column, b_beyond, b_runs, b_pitch, b_width},
                     {b_run_copies, b_copies_magic});
  Scalar* const stages = reinterpret_cast<Scalar*>(shared);
  Scalar* const kept_b = stages + b_first;
  Out* const shared_d = reinterpret_cast<Out*>(shared + d_first);

  // A block is below 2^16, its later work tiles may not be: these are found by steps, without a division.
  const int first_down = matmill::Divisor{tiles_across, tiles_across_magic}.quotient(blockIdx.x);
  const int first_group = matmill::Divisor{tiles_down, tiles_down_magic}.quotient(first_down);
  Place place{int(blockIdx.x) - first_down * tiles_across, first_down - first_group * tiles_down, first_group};
  const auto advance = [&] {
    place.across += step_across;
    place.down += step_down;
    place.group += step_group;
    if (place.across >= tiles_across) place.across -= tiles_across, ++place.down;
    if (place.down >= tiles_down) place.down -= tiles_down, ++place.group;
  };
  const auto work_of = [&] {
    const int row = place.down * bm, column = place.across * bn, product = place.group * group;
    return Work{product, min(group, batch - product), row, column, min(bm, m - row), min(bn, n - column)};
  };
  const auto a_of = [&](const Work& work) { return A + work.product * a_batch + work.row * a_row; };
  const auto b_of = [&](const Work& work) { return B + work.product * b_batch + work.column * b_column; };
  const auto issue_b = [&](const Work& work, Scalar* to) {
    const int products = keep_b ? 1 : work.products;
    if constexpr (Config::B_ONE_RUN) {
      copy_b.issue_run(to, b_of(work), products * work.columns * k);
    } else {
      copy_b.issue(to, b_of(work), products * (B_K_INNER ? work.columns : k) * b_run_copies, B_K_INNER ? k : work.columns);
    }
  };
  const auto issue = [&](const Work& work, int stage) {
    Scalar* const to = stages + stage * stage_elements;
    if constexpr (Config::A_ONE_RUN) {
      copy_a.issue_run(to, a_of(work), work.products * work.rows * k);
    } else {
      copy_a.issue(to, a_of(work), work.products * (A_K_INNER ? work.rows : k) * a_run_copies, A_K_INNER ? k : work.rows);
    }
    if (!keep_b) issue_b(work, to + b_first);
    matmill::ptx::cp_async_commit();
  };

  int stage = 0;
  Work next_work = work_of();
  if (keep_b) issue_b(next_work, kept_b);
  issue(next_work, 0);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Work work = next_work;
    const bool another = tile + gridDim.x < tiles;
    matmill::ptx::cp_async_wait<0>();
    __syncthreads();
    if (another) {
      advance();
      next_work = work_of();
    }
    if (TWO_STAGES && another) issue(next_work, stage ^ 1);
    const Scalar* const staged_a = stages + stage * stage_elements;
    const Scalar* const a = staged_a + CopyA::head(a_of(work));
    const Scalar* const b = (keep_b ? kept_b : staged_a + b_first) + CopyB::head(b_of(work));
    Out* const d = static_cast<Out*>(D) + work.product * d_batch + work.row * d_row + work.column * d_column;
    // D's run stands in shared memory as far behind 16 aligned bytes as it does in global memory.
    constexpr int WIDTH = Config::D_STAGED == ONE_RUN ? 16 / sizeof(Out) : Config::D_WIDTH;
    const int d_head = Config::D_SHIFTED ? int(reinterpret_cast<unsigned long long>(d) / sizeof(Out) % WIDTH) : 0;
    const ShiftedRows rows{matmill::ptx::shared_address(shared_d),
                           unsigned(reinterpret_cast<unsigned long long>(d) / sizeof(Out)), unsigned(d_row), d_pitch};
    multiply<Config>(a, b, work, args, [&](int product, int row, int column, const Acc* sums) {
      if (row >= work.rows || column >= work.columns) return;
      const Out* const c = static_cast<const Out*>(C) + (work.product + product) * c_batch;
      const Result result{c, bias, c_row, c_column, bias_stride, alpha, beta, m, n};
      const int i = work.row + row, j = work.column + column;
      alignas(sizeof(Out) * COLUMNS) Out x[COLUMNS];
#pragma unroll
      for (int v = 0; v < COLUMNS; ++v) {
        const Acc added = Config::BIAS == matmill::ROW_BIAS ? result.of_column(j + v) : result.of_row(i);
        x[v] = matmill::NumberOf<Out>::down(result(sums[v], i, j + v, added));
      }
      const auto store = [&](Out* to, auto step) {
#pragma unroll
        for (int v = 0; v < COLUMNS; v += Config::D_VEC) {
          if (v == 0 || column + v < work.columns) matmill::copy<Config::D_VEC>(to + v * step, x + v);
        }
      };
      if constexpr (Config::D_STAGED == SHIFTED_ROWS) {
        store(shared_d + rows.element(row, column), 1);
      } else if constexpr (D_STAGED) {
        store(shared_d + d_head + product * d_product + row * d_pitch + column * d_step, d_step);
      } else {
        store(d + product * d_batch + row * d_row + column * d_column, d_column);
      }
    });
    if constexpr (D_STAGED || !TWO_STAGES) __syncthreads();
    if (!TWO_STAGES && another) issue(next_work, 0);
    if constexpr (Config::D_STAGED == ONE_RUN) {
      const int end = d_head + work.products * work.rows * work.columns, whole = end / WIDTH;
      const int first = d_head > 0 ? WIDTH : 0;  // of the first whole vector
      Out* const to = d - d_head;
      for (int v = first / WIDTH + threadIdx.x; v < whole; v += THREADS) {
        matmill::copy<WIDTH>(to + v * WIDTH, shared_d + v * WIDTH);
      }
      if (threadIdx.x < WIDTH) {  // what is before and after the whole vectors
        const int after = max(first, whole * WIDTH) + threadIdx.x;
        if (threadIdx.x >= d_head && threadIdx.x < min(first, end)) to[threadIdx.x] = shared_d[threadIdx.x];
        if (after < end) to[after] = shared_d[after];
      }
    } else if constexpr (Config::D_STAGED == BY_ROWS) {
      const matmill::Divisor stores{d_stores, d_stores_magic};
      for (int v = threadIdx.x; v < work.rows * d_stores; v += THREADS) {
        const int row = stores.quotient(v), column = (v - row * d_stores) * WIDTH;
        if (column < work.columns) matmill::copy<WIDTH>(d + row * d_row + column, shared_d + row * d_pitch + column);
      }
    } else if constexpr (Config::D_STAGED == SHIFTED_ROWS) {
      matmill::store_runs<THREADS, Config::D_WIDTH, 1>(rows, d, d_row, work.rows, work.columns, threadIdx.x);
    }
    if (TWO_STAGES) stage ^= 1;
  }
}
