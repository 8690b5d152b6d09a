// The last few rows of E and columns of F, beyond the tiles of the matrix units: plain multiply-adds of what warps have
// in registers for their tiles all the same. 65 x 65 outputs are 64 x 64 by the units and 129 here, rather than 80 x 80.
//
//          ROWS x COLUMNS by the units │ columns[TM][OWN_F]   a warp's rows, and its share of F's border
//          ───────────────────────────────────────────────
//          rows[OWN_E][TN]             │ corner[OWN_E][OWN_F]
//
// Warps of a group with the same rows take the columns of F's border in turns, and those with the same columns the rows
// of E's. Where these are too few for all, who has one follows from the group too, so that each scheduler, which has
// every fourth warp, has as many as the others.
//
// A lane sums its own k's; in the end four lanes' sums are added by shuffles, and the groups' in shared memory.
#pragma once

#include "matmill/inner/fragments.cuh"

namespace matmill {

// BE rows and BF columns lie beyond TILE_ROWS and TILE_COLUMNS. Numbers of a step: LOADS lots of V neighbouring k's.
template <class Config, int BE, int BF, int LOADS, int GROUPS, class StageE, class StageF>
struct Border {
  static constexpr int TM = Config::TM, TN = Config::TN, DOWN = Config::DOWN, ACROSS = Config::ACROSS, V = Config::V;
  static constexpr int TILE_ROWS = 8 * TM * DOWN, TILE_COLUMNS = 8 * TN * ACROSS, WARPS = DOWN * ACROSS;
  static constexpr int OWN_E = (BE + DOWN - 1) / DOWN, OWN_F = (BF + ACROSS - 1) / ACROSS;  // lines of a warp, at most

  template <int LINES, int COUNT, int TAKERS, int MODE>  // one at least, so that there is something to name
  using LinesOf =
      Lines<Scalar, LINES ? LINES : 1, COUNT ? COUNT : 1, TAKERS, V, MODE == PACKED ? int(STRIDED) : MODE, 1>;
  using LinesE = LinesOf<BE, OWN_E, DOWN, Config::E_MODE>;
  using LinesF = LinesOf<BF, OWN_F, ACROSS, Config::F_MODE>;

  // In shared memory, of a group: each warp's columns, rows and corner, then those of the next group.
  static constexpr int OF_COLUMNS = 8 * TM * OWN_F, OF_ROWS = 8 * TN * OWN_E, OF_CORNER = OWN_E * OWN_F;
  static constexpr int ROWS_AT = WARPS * OF_COLUMNS, CORNER_AT = ROWS_AT + WARPS * OF_ROWS;
  static constexpr int SUMS = CORNER_AT + WARPS * OF_CORNER, BYTES = GROUPS * SUMS * int(sizeof(Acc));

  // One more each, as there are no arrays of none.
  Acc columns[TM * OWN_F + 1] = {}, rows[TN * OWN_E + 1] = {}, corner[OF_CORNER + 1] = {};
  LinesE e[2][LOADS];
  LinesF f[2][LOADS];
  int e_at[LinesE::COUNT], f_at[LinesF::COUNT];
  bool has_e, has_f;

  // A warp of a group, and whose turns it has at the border's rows and columns.
  struct Who {
    int down, across, e_taker, f_taker;
    __device__ __forceinline__ Who(int group, int warp) {
      down = warp / ACROSS;
      across = warp % ACROSS;
      const int turn = group * WARPS / 4;
      e_taker = (down + turn) % DOWN;
      f_taker = (across + turn) % ACROSS;
    }
  };

  // `own` is the lane's first k of a stage.
  __device__ __forceinline__ void begin(const Matrix& E, const Matrix& F, int own) {
    const auto [down, across, e_taker, f_taker] = Who(threadIdx.x / Config::S, threadIdx.x % Config::S / 32);
    has_e = BE >= DOWN || e_taker < BE;
    has_f = BF >= ACROSS || f_taker < BF;
    LinesE::template places<StageE::PITCH>(e_at, e_taker, own, E.first + TILE_ROWS * E.line_stride, E.line_stride);
    LinesF::template places<StageF::PITCH>(f_at, f_taker, own, F.first + TILE_COLUMNS * F.line_stride, F.line_stride);
  }

  // Loads lot `i` of set `set`: `k` counts from the lane's own.
  __device__ __forceinline__ void load(const Scalar* stage, int set, int i, int k) {
    const Scalar* const e_from = beyond<LinesE, StageE, TILE_ROWS>(stage);
    const Scalar* const f_from = beyond<LinesF, StageF, TILE_COLUMNS>(stage + StageE::ELEMENTS);
    if constexpr (BE > 0) e[set][i].template read_stage<StageE::PITCH>(e_from, e_at, k);
    if constexpr (BF > 0) f[set][i].template read_stage<StageF::PITCH>(f_from, f_at, k);
  }

  // Adds the products of set `set` with the lines of the warp's tile.
  template <class LE, class LF>
  __device__ __forceinline__ void multiply(const LE (&tile_e)[LOADS], const LF (&tile_f)[LOADS], int set) {
    if (BF > 0 && has_f) add<TM, OWN_F>(columns, tile_e, f[set]);
    if (BE > 0 && has_e) add<TN, OWN_E>(rows, tile_f, e[set]);
    if (BE > 0 && BF > 0 && has_e && has_f) add<OWN_E, OWN_F>(corner, e[set], f[set]);
  }

  // Calls write(row, column, sum) once for every output beyond the tiles, from some thread. Nobody may be reading
  // `shared`, and nobody is in the end.
  template <class RowsOf, class ColumnsOf, class Write>
  __device__ __forceinline__ void sum(Acc* shared, Write write) {
    unsigned thread;  // anew, or the registers would be kept all the time
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const auto [down, across, e_taker, f_taker] = Who(thread / Config::S, thread % Config::S / 32);
    Acc* const own = shared + thread / Config::S * SUMS;
    put<TM, OWN_F>(columns, own + (down * ACROSS + f_taker) * OF_COLUMNS);
    put<TN, OWN_E>(rows, own + ROWS_AT + (e_taker * ACROSS + across) * OF_ROWS);
    Acc* const own_corner = own + CORNER_AT + (e_taker * ACROSS + f_taker) * OF_CORNER;
#pragma unroll
    for (int i = 0; i < OF_CORNER; ++i) {  // which all lanes have that share k's
      const Acc sum = of_four(corner[i]);
      if (threadIdx.x % 32 == 0) own_corner[i] = sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < SUMS; at += Config::BS) {
      Acc sum = 0;
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) sum += shared[g * SUMS + at];
      const int kept = at - (at < ROWS_AT ? 0 : at < CORNER_AT ? ROWS_AT : CORNER_AT);
      const int length = at < ROWS_AT ? OF_COLUMNS : at < CORNER_AT ? OF_ROWS : OF_CORNER;
      const int warp = kept / length, place = kept % length;
      int row, column;
      if (at < ROWS_AT) {
        row = RowsOf::line(warp / ACROSS * 8 + place % 8, place / 8 % TM);
        column = TILE_COLUMNS + LinesF::line(warp % ACROSS, place / (8 * TM));
      } else if (at < CORNER_AT) {
        row = TILE_ROWS + LinesE::line(warp / ACROSS, place / (8 * TN));
        column = ColumnsOf::line(warp % ACROSS * 8 + place % 8, place / 8 % TN);
      } else {
        row = TILE_ROWS + LinesE::line(warp / ACROSS, place % (OWN_E ? OWN_E : 1));
        column = TILE_COLUMNS + LinesF::line(warp % ACROSS, place / (OWN_E ? OWN_E : 1));
      }
      if (row < Config::M && column < Config::N) write(row, column, sum);
    }
    __syncthreads();
  }

 private:
  template <class L, class Stage, int LINES>
  static __device__ __forceinline__ const Scalar* beyond(const Scalar* stage) {
    return stage + LINES * (L::ALONG ? Stage::PITCH : 1);
  }

  // sums[b][a] += a's line times b's, over a step's k's.
  template <int COUNT, int OWN, int SIZE, class LA, class LB>
  static __device__ __forceinline__ void add(Acc (&sums)[SIZE], const LA (&a)[LOADS], const LB (&b)[LOADS]) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int y = 0; y < OWN; ++y)
#pragma unroll
          for (int x = 0; x < COUNT; ++x) sums[y * COUNT + x] += a[i].wide(x, v) * b[i].wide(y, v);
  }

  static __device__ __forceinline__ Acc of_four(Acc sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  // A warp's sums of COUNT lines of each of 8 lanes, with OWN lines of the border.
  template <int COUNT, int OWN, int SIZE>
  static __device__ __forceinline__ void put(const Acc (&sums)[SIZE], Acc* to) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT * OWN; ++i) {
      const Acc sum = of_four(sums[i]);
      if (lane % 4 == 0) to[i * 8 + lane / 4] = sum;
    }
  }
};

}  // namespace matmill
