// D = A * B for a B with at most FEW columns: A is read once and straight into registers, B through shared memory.
//
//   A ── vectors, one batch ahead ──▶ registers ──┐
//   B ── thin/few_columns.cuh ──▶ shared memory ──┴▶ acc[ROWS][FEW] ─▶ shuffles ─▶ shared ─▶ outputs
//
// WARPS_K of a block's warps share rows and divide k among them, and so do LANES_K lanes of a warp. A batch is what a
// lane loads at a time: RUNS runs of RUN consecutive k's of ROWS consecutive rows.
//
//   A_ALONG_K   k is contiguous: a vector is a run of one row, and a warp reads 32 adjacent ones
//   otherwise   rows are contiguous: a vector is one k of ROWS rows, and LANES_M lanes read a cache line of them
//
// A sum has k / (LANES_K * WARPS_K * slices) terms, and its rounding error grows with these. They are added in an order
// that depends on launch and layout alone: the same inputs give the same bits.
#pragma once

#include "kernels/thin/few_columns.cuh"

namespace matmill {

template <class Scalar, class Config>
struct ThinTile {
  using Number = NumberOf<Scalar>;
  using Acc = typename Number::Acc;
  static constexpr int FEW = Config::FEW, ROWS = Config::ROWS, RUN = Config::RUN, RUNS = Config::RUNS;
  static constexpr int LANES_K = Config::LANES_K, LANES_M = 32 / LANES_K;
  static constexpr int WARPS = 8, WARPS_K = Config::WARPS_K, WARPS_M = WARPS / WARPS_K, THREADS = WARPS * 32;
  static constexpr bool ALONG_K = Config::A_ALONG_K != 0;
  static constexpr int BM = WARPS_M * LANES_M * ROWS, BK = Config::BK;
  static constexpr int BATCH = WARPS_K * LANES_K * RUN * RUNS,
                       BATCHES = BK / BATCH;  // k's, and batches of a chunk
  static_assert(LANES_K * LANES_M == 32 && WARPS_K * WARPS_M == WARPS, "warps and lanes divide rows and k");
  static_assert(BATCHES * BATCH == BK, "chunks are whole batches");

  using Columns = FewColumns<Scalar, FEW, BK, THREADS, Config::B_ALONG_K != 0, Config::B_VEC, RUN, LANES_K>;

  // Lanes that share rows add and divide their sums: each keeps PER_LANE, of which the block adds PIECE at a time.
  static constexpr int SUMS = ROWS * FEW, PER_LANE = SUMS > LANES_K ? SUMS / LANES_K : 1;
  static constexpr int REPEATED = SUMS < LANES_K ? LANES_K / SUMS : 1;  // lanes that end up with the same sum
  static constexpr int PIECE = PER_LANE < 8 ? PER_LANE : 8;
  static constexpr int SUM_BYTES = WARPS_K > 1 ? THREADS * PIECE * int(sizeof(Acc)) : 0;
  static constexpr int SHARED_BYTES = Columns::BYTES > SUM_BYTES ? Columns::BYTES : SUM_BYTES;

  struct Batch {
    alignas(16) Scalar x[RUNS * ROWS * RUN];

    __device__ __forceinline__ Scalar at(int s, int row, int i) const {
      return ALONG_K ? x[(s * ROWS + row) * RUN + i] : x[(s * RUN + i) * ROWS + row];
    }
  };

  Acc acc[SUMS];
  int warp_k, warp_m, lane_k, lane_m;

  __device__ __forceinline__ ThinTile() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    warp_k = warp % WARPS_K;
    warp_m = warp / WARPS_K;
    lane_k = lane / LANES_M;
    lane_m = lane % LANES_M;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) acc[i] = 0;
  }

  // The first of a lane's rows in the block's tile.
  static __device__ __forceinline__ int row_of(int warp_m, int lane_m) { return (warp_m * LANES_M + lane_m) * ROWS; }

  // acc = A * B over the first k terms. A starts at the block's first row, of which there are `rows`.
  __device__ __forceinline__ void run(void* shared, const Scalar* A, long long a_row, long long a_column, int rows,
                                      const Scalar* B, long long b_row, long long b_column, int columns, int k) {
    if (k <= 0) return;
    const int first = (warp_k * LANES_K + lane_k) * RUN;
    const int row = row_of(warp_m, lane_m);
    const Scalar* next = A + row * a_row + first * a_column;
    int left = k - first;  // k's from this lane's first one of the next batch
    const auto load_next = [&](Batch& batch) {
      load(batch, next, a_row, a_column, rows - row, left);
      next += BATCH * a_column;
      left -= BATCH;
    };

    Batch now, later;
    load_next(now);
    Columns staged(shared, B, b_row, b_column, k, columns);
    staged.start(0);
    staged.finish(0);
    __syncthreads();
    int buffer = 0;
#pragma unroll 1
    for (int rest = k; rest > 0; rest -= BK) {
      const bool more = rest > BK;
      if (more) staged.start(buffer ^ 1);
#pragma unroll BATCHES < 2 ? 1 : 2
      for (int b = 0; b < BATCHES; ++b) {
        load_next(later);
        multiply(now, staged, buffer, b);
        now = later;
      }
      // All warps have read the other buffer before the barrier that ended the last chunk.
      if (more) staged.finish(buffer ^ 1);
      __syncthreads();
      buffer ^= 1;
    }
  }

  // Calls write(row of the tile, column, sum) once for each output, from any thread. No thread may be reading `shared`.
  template <class Write>
  __device__ __forceinline__ void sum(void* shared, Write write) {
    add_lanes<SUMS, 16>();
    const auto put = [&](int i, int warp_m, int lane_k, int lane_m, Acc sum) {
      const int output = REPEATED > 1 ? lane_k / REPEATED : lane_k * PER_LANE + i;
      if (lane_k % REPEATED == 0) write(row_of(warp_m, lane_m) + output / FEW, output % FEW, sum);
    };
    if constexpr (WARPS_K == 1) {
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) put(i, warp_m, lane_k, lane_m, acc[i]);
    } else {
      Acc* const sums = static_cast<Acc*>(shared);  // [PIECE][WARPS_M][WARPS_K][32]
#pragma unroll
      for (int piece = 0; piece < PER_LANE; piece += PIECE) {
        if (piece > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < PIECE; ++i) sums[i * THREADS + threadIdx.x] = acc[piece + i];
        __syncthreads();
        for (int at = threadIdx.x; at < PIECE * WARPS_M * 32; at += THREADS) {
          const int lane = at % 32, other = at / 32 % WARPS_M, i = at / (32 * WARPS_M);
          Acc total = 0;
#pragma unroll
          for (int w = 0; w < WARPS_K; ++w) total += sums[i * THREADS + (other * WARPS_K + w) * 32 + lane];
          put(piece + i, other, lane / LANES_M, lane % LANES_M, total);
        }
      }
    }
  }

 private:
  // Nothing is read twice: the streaming hint leaves the caches to B. What is past the end becomes zero, so that it
  // adds nothing.
  template <int WIDTH>
  static __device__ __forceinline__ void load_vector(Scalar* to, const Scalar* from, bool inside) {
    using Bits = typename Word<WIDTH * sizeof(Scalar)>::Type;
    Bits bits{};
    if (inside) bits = __ldcs(reinterpret_cast<const Bits*>(from));
    *reinterpret_cast<Bits*>(to) = bits;
  }

  static __device__ __forceinline__ void load(Batch& batch, const Scalar* from, long long a_row, long long a_column,
                                              int rows, int left) {
#pragma unroll
    for (int s = 0; s < RUNS; ++s) {
      const int k = s * (WARPS_K * LANES_K * RUN);
      if constexpr (ALONG_K) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
          load_vector<RUN>(&batch.x[(s * ROWS + row) * RUN], from + row * a_row + k * a_column, row < rows && k < left);
        }
      } else {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
          load_vector<ROWS>(&batch.x[(s * RUN + i) * ROWS], from + (k + i) * a_column, rows > 0 && k + i < left);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(const Batch& batch, const Columns& staged, int buffer, int b) {
#pragma unroll
    for (int s = 0; s < RUNS; ++s) {
      const int group = (b * RUNS + s) * WARPS_K + warp_k;
      Acc a[ROWS][RUN];
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) a[row][i] = Number::up(batch.at(s, row, i));
      }
#pragma unroll
      for (int column = 0; column < FEW; ++column) {
        alignas(16) Acc run[RUN];
        staged.read(run, buffer, group, lane_k, column);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
#pragma unroll
          for (int row = 0; row < ROWS; ++row) acc[row * FEW + column] += a[row][i] * run[i];
        }
      }
    }
  }

  // Two lanes at DISTANCE hold the same COUNT sums: one keeps their upper half, the other the lower; a single sum both.
  // At the end lane_k has the sums lane_k * PER_LANE and following.
  template <int COUNT, int DISTANCE>
  __device__ __forceinline__ void add_lanes() {
    if constexpr (DISTANCE >= LANES_M) {
      if constexpr (COUNT == 1) {
        acc[0] += __shfl_xor_sync(0xffffffffu, acc[0], DISTANCE);
        add_lanes<1, DISTANCE / 2>();
      } else {
        const bool upper = threadIdx.x & DISTANCE;
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
          const Acc keep = upper ? acc[i + COUNT / 2] : acc[i], give = upper ? acc[i] : acc[i + COUNT / 2];
          acc[i] = keep + __shfl_xor_sync(0xffffffffu, give, DISTANCE);
        }
        add_lanes<COUNT / 2, DISTANCE / 2>();
      }
    }
  }
};

}  // namespace matmill
