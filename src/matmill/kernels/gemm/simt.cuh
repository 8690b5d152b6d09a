// The main loop of a matrix product on the FMA units (SIMT): D tile = sum over k of A tile * B tile.
//
//   global ── cp.async, STAGES deep ──▶ shared a[BK][BM], b[BK][BN] ── 16-byte reads ──▶ registers ──▶ acc[TM][TN]
//
// Pipeline, per k-tile t (one barrier each; the fragment of step k+1 is read while step k computes):
//
//   all warps   k = 0        issue the copies of tile t+STAGES-1 into the stage that tile t-1 left, commit
//               k = 0..BK-2  read fragment k+1 of tile t          │ FMA fragment k
//               k = BK-1     wait until tile t+1 has landed, barrier, read its fragment 0 │ FMA fragment BK-1
//
// The barrier at k = BK-1 publishes tile t+1 to all warps. It also proves that every warp has read the last fragment of
// tile t, whose stage the next iteration's copies overwrite.
//
// Both tiles are k-major in shared memory whatever their global layout, so the inner loop handles one layout. An
// operand that is contiguous along k is transposed on the way, one element per cp.async. That costs 1% of the FMAs'
// issue slots and allows any strides and any alignment.
//
// WARPS_M x WARPS_N warp tiles cover the block tile. In a warp, each of LANES_M x LANES_N lanes computes TM x TN
// outputs in vectors of 16 bytes. Lane ^ 1 shares a row of lanes and lane ^ 2 a column: on either condition the
// hardware merges the quarter-warps of a 16-byte read in pairs, so every fragment read takes two passes over the banks.
// With row-major lane numbers, reads of B take four (matmill.emulator.memory.banks has the rule).
//
// With SLICES > 1, groups of warps share one tile of D and each group takes its slice of every k-tile: more warps per
// tile where there are too few tiles to fill the GPU. The slices are summed through shared memory at the end.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/ptx/cp_async.cuh"
#include "kernels/shared/raster.cuh"

namespace matmill {

template <class Scalar>
struct Vec16 {
  static constexpr int SIZE = 16 / sizeof(Scalar);
};

// Columns of a tile stand in the order of memory.
struct InOrder {
  static constexpr int LANES = 1;
  static __device__ __forceinline__ constexpr int column(int outer) { return outer; }
  static constexpr bool adds(int) { return true; }
};

// Where D's rows do not start on vectors: a lane's V columns, which are neighbours in the tile, are LANES apart in D.
// Neighbouring lanes then store to neighbouring addresses, one column each at a time, instead of to every V-th.
template <int LANES_, int V>
struct Interleaved {
  static constexpr int LANES = LANES_, CHUNK = LANES * V;
  static __device__ __forceinline__ constexpr int column(int outer) {
    return outer / CHUNK * CHUNK + outer % LANES * V + outer % CHUNK / LANES;
  }
  // Whether column(x + step) = column(x) + column(step) for all x of a pass.
  static constexpr bool adds(int step) {
    return step % LANES == 0 && (step % CHUNK == 0 || CHUNK % step == 0);
  }
};

template <bool INTERLEAVED, int LANES, int V>
struct SpreadOf {
  using Type = InOrder;
};
template <int LANES, int V>
struct SpreadOf<true, LANES, V> {
  using Type = Interleaved<LANES, V>;
};

// Copies one operand's BK x EXTENT tile to shared memory. EXTENT runs along m (for A) or n (for B), called "outer"
// below; Spread says where each of them stands in the tile.
template <class Scalar, int EXTENT, int BK, int THREADS, bool ALONG_K, int VEC, class Spread = InOrder>
struct TileCopy {
  static_assert(!ALONG_K || VEC == 1, "a tile that is transposed on the way is copied element by element");
  static constexpr int PITCH = EXTENT + Vec16<Scalar>::SIZE;  // padding spreads a transposing copy over the banks
  static constexpr int ITEMS = EXTENT * BK / VEC;
  // Each pass of PASS threads advances by ADVANCE along one dimension and covers the other.
  static constexpr int INNER = ALONG_K ? BK : EXTENT / VEC;
  static constexpr int ADVANCE = THREADS / INNER, PASS = ADVANCE * INNER;
  static_assert(ADVANCE > 0, "a pass of all threads must cover a row of the tile");
  static constexpr int SLOTS = (ITEMS + PASS - 1) / PASS;
  static_assert(VEC == 1 || Spread::LANES == 1, "vectors stay in order");
  static_assert(!ALONG_K || Spread::adds(ADVANCE), "a pass must be as far from the next one in the tile for all threads");

  const Scalar* next;      // this thread's first element of the next tile
  long long tile_stride;   // from one k-tile to the next, in elements
  long long slot_stride;   // from one pass to the next, in elements
  unsigned offset;         // this thread's first element in the tile, in bytes
  int outer_left, k_left;  // extent of the matrix from this thread's first element

  __device__ __forceinline__ TileCopy(const Scalar* origin, long long outer_stride, long long k_stride, int outer_left,
                                      int k) {
    const unsigned fast = threadIdx.x % INNER, slow = threadIdx.x / INNER;
    const int outer = ALONG_K ? slow : fast * VEC;
    const int inner_k = ALONG_K ? fast : slow;
    offset = (inner_k * PITCH + Spread::column(outer)) * sizeof(Scalar);
    this->outer_left = outer_left - outer;
    k_left = k - inner_k;
    next = origin + outer * outer_stride + inner_k * k_stride;
    tile_stride = BK * k_stride;
    slot_stride = ADVANCE * (ALONG_K ? outer_stride : k_stride);
  }

  // tile is a shared-memory address: a pointer would cost an address computation per copy.
  __device__ __forceinline__ void issue(unsigned tile) {
    const Scalar* source = next;
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const int o = ALONG_K ? s * ADVANCE : 0, kk = ALONG_K ? 0 : s * ADVANCE;
      const int items = ITEMS - s * PASS < PASS ? ITEMS - s * PASS : PASS;
      // An item is copied whole or not at all: the host picks VEC > 1 only where the extent is a multiple of it.
      const unsigned to = tile + offset + (kk * PITCH + Spread::column(o)) * sizeof(Scalar);
      const bool keep = o < outer_left && kk < k_left;
      if (items == THREADS) {
        ptx::cp_async_zfill<sizeof(Scalar) * VEC>(to, source, keep);
      } else {
        ptx::cp_async_zfill_if<sizeof(Scalar) * VEC>(threadIdx.x < items, to, source, keep);
      }
      source += slot_stride;
    }
    next += tile_stride;
    k_left -= BK;
  }
};

template <class Scalar, class Config>
struct SimtGemm {
  using Number = NumberOf<Scalar>;
  using Acc = typename Number::Acc;
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, TM = Config::TM, TN = Config::TN;
  static constexpr int WARPS_M = Config::WARPS_M, WARPS_N = Config::WARPS_N, SLICES = Config::SLICES;
  static constexpr int STAGES = Config::STAGES;
  static constexpr int V = Vec16<Scalar>::SIZE;
  static constexpr int LANES_M = BM / (WARPS_M * TM), LANES_N = BN / (WARPS_N * TN);
  static constexpr int SLICE_THREADS = WARPS_M * WARPS_N * 32;  // the threads of one slice
  static constexpr int THREADS = SLICE_THREADS * SLICES;
  static constexpr int SLICE_K = BK / SLICES;
  static_assert(LANES_M * LANES_N == 32 && LANES_N >= 2 && LANES_M >= 2, "thread tiles must cover the warp tile");
  static_assert(LANES_M * WARPS_M * TM == BM && LANES_N * WARPS_N * TN == BN, "warp tiles must cover the block tile");
  static_assert(TM % V == 0 && TN % V == 0, "fragments are read 16 bytes at a time");
  static_assert(SLICE_K * SLICES == BK && SLICE_K % 2 == 0, "fragments alternate between two sets of registers");
  static_assert(STAGES >= 2, "one stage computes while another is in flight");

  using CopyA = TileCopy<Scalar, BM, BK, THREADS, Config::A_ALONG_K != 0, Config::A_VEC>;
  static constexpr int B_ADVANCE = THREADS / (Config::B_ALONG_K != 0 ? BK : BN);  // of a pass of copies
  static constexpr bool SPREAD = Config::D_VEC == 1 && Config::B_VEC == 1 &&
                                 (Config::B_ALONG_K == 0 || Interleaved<LANES_N, V>::adds(B_ADVANCE));
  using Spread = typename SpreadOf<SPREAD, LANES_N, V>::Type;
  using CopyB = TileCopy<Scalar, BN, BK, THREADS, Config::B_ALONG_K != 0, Config::B_VEC, Spread>;
  static constexpr int B_OFFSET = BK * CopyA::PITCH;  // a stage holds A's tile, then B's
  static constexpr int STAGE = B_OFFSET + BK * CopyB::PITCH;
  static constexpr int STAGE_BYTES = STAGE * int(sizeof(Scalar)), PIPELINE_BYTES = STAGES * STAGE_BYTES;
  static constexpr int REDUCE_BYTES = SLICES > 1 ? (SLICES - 1) * BM * BN * int(sizeof(Acc)) : 0;
  static constexpr int SHARED_BYTES = PIPELINE_BYTES > REDUCE_BYTES ? PIPELINE_BYTES : REDUCE_BYTES;
  static_assert(SHARED_BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");

  struct Fragment {
    Scalar a[TM], b[TN];
  };

  Acc acc[TM][TN] = {};
  int slice, row, column, read_column;  // this thread's first output in the block's tile; its column in shared memory

  __device__ __forceinline__ SimtGemm() {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lane_m = lane / 2 % LANES_M, lane_n = lane % 2 + lane / (2 * LANES_M) * 2;
    slice = warp / (WARPS_M * WARPS_N);
    const unsigned w = warp % (WARPS_M * WARPS_N);
    row = (w / WARPS_N) * LANES_M * TM + lane_m * V;
    read_column = (w % WARPS_N) * LANES_N * TN + lane_n * V;
    column = SPREAD ? (w % WARPS_N) * LANES_N * TN + lane_n : read_column;
  }

  // The thread's i-th row (j-th column), relative to row (column).
  static __device__ __forceinline__ constexpr int row_of(int i) { return i / V * (LANES_M * V) + i % V; }
  static __device__ __forceinline__ constexpr int column_of(int j) {
    return j / V * (LANES_N * V) + j % V * (SPREAD ? LANES_N : 1);
  }
  static __device__ __forceinline__ constexpr int read_column_of(int j) { return j / V * (LANES_N * V); }

  static __device__ __forceinline__ void read16(Scalar* to, const Scalar* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }

  // Reads fragment kk of this slice's part of a k-tile. a and b point at this thread's first row and column in the
  // stage.
  static __device__ __forceinline__ void read(Fragment& f, const Scalar* a, const Scalar* b, int kk) {
#pragma unroll
    for (int i = 0; i < TM; i += V) read16(&f.a[i], &a[kk * CopyA::PITCH + row_of(i)]);
#pragma unroll
    for (int j = 0; j < TN; j += V) read16(&f.b[j], &b[kk * CopyB::PITCH + read_column_of(j)]);
  }

  __device__ __forceinline__ void multiply(const Fragment& f) {
    Acc columns[TN];  // widened once, not once per FMA
#pragma unroll
    for (int j = 0; j < TN; ++j) columns[j] = Number::up(f.b[j]);
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const Acc row = Number::up(f.a[i]);
#pragma unroll
      for (int jj = 0; jj < TN; ++jj) {
        // Back and forth: consecutive FMAs share an operand register.
        const int j = i % 2 ? TN - 1 - jj : jj;
        acc[i][j] += row * columns[j];
      }
    }
  }

  static __device__ __forceinline__ void issue(unsigned stage, CopyA& copy_a, CopyB& copy_b) {
    copy_a.issue(stage);
    copy_b.issue(stage + B_OFFSET * sizeof(Scalar));
    ptx::cp_async_commit();
  }

  // acc += A tile row * B tile column over all of k. `shared` holds SHARED_BYTES, aligned to 16.
  __device__ __forceinline__ void run(Scalar* shared, CopyA copy_a, CopyB copy_b, int k) {
    const int tiles = (k + BK - 1) / BK;
    const unsigned stages = ptx::shared_address(shared);

    // Tiles past the end are zero-filled. Issuing them costs little and keeps the number of groups constant.
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) issue(stages + s * STAGE_BYTES, copy_a, copy_b);
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();

    const int first_k = slice * SLICE_K;
    const Scalar* read_a = shared + first_k * CopyA::PITCH + row;
    const Scalar* read_b = shared + B_OFFSET + first_k * CopyB::PITCH + read_column;
    Fragment f[2];
    const unsigned last = stages + (STAGES - 1) * STAGE_BYTES;
    unsigned reading = stages, writing = last;
    read(f[0], read_a, read_b, 0);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int kk = 0; kk < SLICE_K; ++kk) {
        if (kk == SLICE_K - 1) {
          ptx::cp_async_wait<STAGES - 2>();
          __syncthreads();
          // The stage that was read last is the next one to write. A step for both pointers takes fewer instructions
          // and registers than an offset that is added to each.
          const int step = reading == last ? -(STAGES - 1) * STAGE : STAGE;
          writing = reading;
          reading += step * int(sizeof(Scalar));
          read_a += step;
          read_b += step;
        }
        read(f[(kk + 1) % 2], read_a, read_b, (kk + 1) % SLICE_K);
        if (kk == 0) issue(writing, copy_a, copy_b);
        multiply(f[kk % 2]);
      }
    }
    ptx::cp_async_wait<0>();
    if constexpr (SLICES > 1) reduce_slices(reinterpret_cast<Acc*>(shared));
  }

  // Adds the slices to slice 0, in slice order: the result is deterministic.
  __device__ __forceinline__ void reduce_slices(Acc* shared) {
    __syncthreads();  // the stages become the reduction buffer
    const int thread = threadIdx.x % SLICE_THREADS;
    if (slice > 0) {
      Acc* own = shared + (slice - 1) * BM * BN;
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) own[(i * TN + j) * SLICE_THREADS + thread] = acc[i][j];
    }
    __syncthreads();
    if (slice > 0) return;
#pragma unroll
    for (int s = 1; s < SLICES; ++s)
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += shared[(s - 1) * BM * BN + (i * TN + j) * SLICE_THREADS + thread];
  }

  // D = alpha * acc + beta * C where the tile is inside m x n, in the type of the sums. Slice 0 holds them.
  template <int D_VEC>
  __device__ __forceinline__ void store(const Acc* C, long long c_row, long long c_col, Acc* D, long long d_row,
                                        long long d_col, Origin origin, int m, int n, Acc alpha, Acc beta) const {
    if (slice > 0) return;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int r = origin.row + row + row_of(i);
      if (r >= m) continue;
#pragma unroll
      for (int j = 0; j < TN; j += D_VEC) {
        const int c = origin.column + column + column_of(j);
        if (c >= n) continue;
        Acc out[D_VEC];
#pragma unroll
        for (int v = 0; v < D_VEC; ++v) {
          out[v] = alpha * acc[i][j + v];
          // beta = 0 must not read C: it may hold NaN, or not exist.
          if (beta != Acc(0)) out[v] += beta * C[r * c_row + (c + v) * c_col];
        }
        if constexpr (D_VEC == 1) {
          D[r * d_row + c * d_col] = out[0];
        } else {
          *reinterpret_cast<uint4*>(&D[r * d_row + c]) = *reinterpret_cast<uint4*>(out);
        }
      }
    }
  }
};

}  // namespace matmill
