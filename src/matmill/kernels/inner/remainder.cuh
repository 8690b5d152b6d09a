// The remainder rows of E and columns of F, beyond the tensor-core tiles: FMAs on operands that warps hold in registers
// for their tiles. 65 x 65 outputs are 64 x 64 on the tensor cores and 129 here, instead of 80 x 80.
//
//          ROWS x COLUMNS on tensor cores │ columns[TM][OWN_F]   a warp's rows times its remainder columns of F
//          ───────────────────────────────┼───────────────────
//          rows[OWN_E][TN]                │ corner[OWN_E][OWN_F]
//
// Warps of a group with the same rows share out the remainder columns of F; warps with the same columns share out the
// remainder rows of E. Where these are too few for all warps, the owner rotates with the group, so that each scheduler
// (every fourth warp) gets the same work.
//
// A lane sums its own k's. At the end shuffles add four lanes' sums, and shared memory adds the groups'.
#pragma once

#include "kernels/inner/matrix.cuh"
#include "kernels/inner/fragments.cuh"

namespace matmill {

// EXTRA_ROWS and EXTRA_COLUMNS follow TILE_ROWS and TILE_COLUMNS. A step has LOADS loads of V consecutive k's.
template <class Config, int EXTRA_ROWS, int EXTRA_COLUMNS, int LOADS, int GROUPS, class StageE, class StageF>
struct Remainder {
  static constexpr int TM = Config::TM, TN = Config::TN, DOWN = Config::DOWN, ACROSS = Config::ACROSS, V = Config::V;
  static constexpr int TILE_ROWS = 8 * TM * DOWN, TILE_COLUMNS = 8 * TN * ACROSS, WARPS = DOWN * ACROSS;
  static constexpr int OWN_E = (EXTRA_ROWS + DOWN - 1) / DOWN;         // most remainder rows that a warp owns,
  static constexpr int OWN_F = (EXTRA_COLUMNS + ACROSS - 1) / ACROSS;  // and columns

  template <int OUTER, int COUNT, int OWNERS, int MODE>  // at least one, as arrays of 0 do not exist
  using FragmentOf =
      Fragment<Scalar, OUTER ? OUTER : 1, COUNT ? COUNT : 1, OWNERS, V, MODE == PACKED ? int(STRIDED) : MODE, 1>;
  using FragmentE = FragmentOf<EXTRA_ROWS, OWN_E, DOWN, Config::E_MODE>;
  using FragmentF = FragmentOf<EXTRA_COLUMNS, OWN_F, ACROSS, Config::F_MODE>;

  // Shared memory, per group: each warp's columns, then rows, then corners.
  static constexpr int COLUMNS_SIZE = 8 * TM * OWN_F, ROWS_SIZE = 8 * TN * OWN_E, CORNER_SIZE = OWN_E * OWN_F;
  static constexpr int ROWS_OFFSET = WARPS * COLUMNS_SIZE, CORNER_OFFSET = ROWS_OFFSET + WARPS * ROWS_SIZE;
  static constexpr int SUMS = CORNER_OFFSET + WARPS * CORNER_SIZE, BYTES = GROUPS * SUMS * int(sizeof(Acc));

  // One element more each, as arrays of 0 do not exist.
  Acc columns[TM * OWN_F + 1] = {}, rows[TN * OWN_E + 1] = {}, corner[CORNER_SIZE + 1] = {};
  FragmentE e[2][LOADS];
  FragmentF f[2][LOADS];
  int e_at[FragmentE::COUNT], f_at[FragmentF::COUNT];
  bool has_e, has_f;

  // A warp's position in its group, and which remainder rows and columns it owns.
  struct Role {
    int down, across, e_owner, f_owner;
    __device__ __forceinline__ Role(int group, int warp) {
      down = warp / ACROSS;
      across = warp % ACROSS;
      const int rotation = group * WARPS / 4;
      e_owner = (down + rotation) % DOWN;
      f_owner = (across + rotation) % ACROSS;
    }
  };

  // `own` is the lane's first k of a stage.
  __device__ __forceinline__ void begin(const Matrix& E, const Matrix& F, int own) {
    const auto [down, across, e_owner, f_owner] = Role(threadIdx.x / Config::S, threadIdx.x % Config::S / 32);
    has_e = EXTRA_ROWS >= DOWN || e_owner < EXTRA_ROWS;
    has_f = EXTRA_COLUMNS >= ACROSS || f_owner < EXTRA_COLUMNS;
    FragmentE::template offsets<StageE::PITCH>(e_at, e_owner, own, E.first + TILE_ROWS * E.outer_stride,
                                               E.outer_stride);
    FragmentF::template offsets<StageF::PITCH>(f_at, f_owner, own, F.first + TILE_COLUMNS * F.outer_stride,
                                               F.outer_stride);
  }

  // Loads part `i` of register set `set`; `k` is relative to the lane's own.
  __device__ __forceinline__ void load(const Scalar* stage, int set, int i, int k) {
    const Scalar* const e_from = past_tiles<FragmentE, StageE, TILE_ROWS>(stage);
    const Scalar* const f_from = past_tiles<FragmentF, StageF, TILE_COLUMNS>(stage + StageE::ELEMENTS);
    if constexpr (EXTRA_ROWS > 0) e[set][i].template read_stage<StageE::PITCH>(e_from, e_at, k);
    if constexpr (EXTRA_COLUMNS > 0) f[set][i].template read_stage<StageF::PITCH>(f_from, f_at, k);
  }

  // Multiplies register set `set` with the fragments of the warp's tile.
  template <class LE, class LF>
  __device__ __forceinline__ void multiply(const LE (&tile_e)[LOADS], const LF (&tile_f)[LOADS], int set) {
    if (EXTRA_COLUMNS > 0 && has_f) add<TM, OWN_F>(columns, tile_e, f[set]);
    if (EXTRA_ROWS > 0 && has_e) add<TN, OWN_E>(rows, tile_f, e[set]);
    if (EXTRA_ROWS > 0 && EXTRA_COLUMNS > 0 && has_e && has_f) add<OWN_E, OWN_F>(corner, e[set], f[set]);
  }

  // Calls write(row, column, sum) once per output beyond the tiles, from any thread. No thread may be reading `shared`;
  // none is afterwards.
  template <class RowsOf, class ColumnsOf, class Write>
  __device__ __forceinline__ void sum(Acc* shared, Write write) {
    unsigned thread;  // read again, or a register would hold it throughout the main loop
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const auto [down, across, e_owner, f_owner] = Role(thread / Config::S, thread % Config::S / 32);
    Acc* const own = shared + thread / Config::S * SUMS;
    store_sums<TM, OWN_F>(columns, own + (down * ACROSS + f_owner) * COLUMNS_SIZE);
    store_sums<TN, OWN_E>(rows, own + ROWS_OFFSET + (e_owner * ACROSS + across) * ROWS_SIZE);
    Acc* const own_corner = own + CORNER_OFFSET + (e_owner * ACROSS + f_owner) * CORNER_SIZE;
#pragma unroll
    for (int i = 0; i < CORNER_SIZE; ++i) {  // the eight quads hold the same corner
      const Acc sum = quad_sum(corner[i]);
      if (threadIdx.x % 32 == 0) own_corner[i] = sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < SUMS; at += Config::BS) {
      Acc sum = 0;
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) sum += shared[g * SUMS + at];
      const int within = at - (at < ROWS_OFFSET ? 0 : at < CORNER_OFFSET ? ROWS_OFFSET : CORNER_OFFSET);
      const int length = at < ROWS_OFFSET ? COLUMNS_SIZE : at < CORNER_OFFSET ? ROWS_SIZE : CORNER_SIZE;
      const int warp = within / length, slot = within % length;
      int row, column;
      if (at < ROWS_OFFSET) {
        row = RowsOf::outer_index(warp / ACROSS * 8 + slot % 8, slot / 8 % TM);
        column = TILE_COLUMNS + FragmentF::outer_index(warp % ACROSS, slot / (8 * TM));
      } else if (at < CORNER_OFFSET) {
        row = TILE_ROWS + FragmentE::outer_index(warp / ACROSS, slot / (8 * TN));
        column = ColumnsOf::outer_index(warp % ACROSS * 8 + slot % 8, slot / 8 % TN);
      } else {
        row = TILE_ROWS + FragmentE::outer_index(warp / ACROSS, slot % (OWN_E ? OWN_E : 1));
        column = TILE_COLUMNS + FragmentF::outer_index(warp % ACROSS, slot / (OWN_E ? OWN_E : 1));
      }
      if (row < Config::M && column < Config::N) write(row, column, sum);
    }
    __syncthreads();
  }

 private:
  template <class L, class Stage, int OUTER>
  static __device__ __forceinline__ const Scalar* past_tiles(const Scalar* stage) {
    return stage + OUTER * (L::K_INNER ? Stage::PITCH : 1);
  }

  // sums[b][a] += a * b, over a step's k's.
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

  static __device__ __forceinline__ Acc quad_sum(Acc sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  // Stores a warp's sums: COUNT rows (columns) of each of 8 quads, times OWN remainder columns (rows).
  template <int COUNT, int OWN, int SIZE>
  static __device__ __forceinline__ void store_sums(const Acc (&sums)[SIZE], Acc* to) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT * OWN; ++i) {
      const Acc sum = quad_sum(sums[i]);
      if (lane % 4 == 0) to[i * 8 + lane / 4] = sum;
    }
  }
};

}  // namespace matmill
