// The main loop of a matrix product on the tensor cores, for 16-bit elements in any layout: D tile = sum over k of A
// tile * B tile.
//
//   global ── cp.async, STAGES deep ──▶ shared a, b, swizzled ── ldmatrix ──▶ fragments ── mma ──▶ sums
//
// Pipeline, per k-tile t of STEPS = BK / 16 steps (one barrier each; fragments of the next step are read while one
// computes):
//
//   all warps   s = 0..        read fragments s+1 of tile t │ issue some copies of tile t+STAGES-1 into the stage that
//                              tile t-1 left │ mma fragments s
//               s = STEPS-1    store this thread's copies that pass through registers │ commit, wait until tile t+1 has
//                              landed, barrier, read its fragments 0 │ mma fragments STEPS-1
//
// cp.async and ldmatrix share one queue: if all copies were issued at s = 0, the next fragments would wait behind them.
//
// The barrier publishes tile t+1 to all warps. It also proves that every warp has read the last fragments of tile t,
// whose stage the next iteration's copies overwrite.
//
// A tile keeps its matrix's global layout: rows in shared memory run along the contiguous dimension. ldmatrix loads it
// directly or transposes 8x8 matrices, so all four pairs of layouts cost the same. Where rows are not 4-byte aligned,
// or there is no cp.async (sm_75), elements pass through registers: loads are issued at s = 0, so that they have time
// to arrive, and stored at s = STEPS-1.
#pragma once

#include "matmill/gemm/raster.cuh"
#include "matmill/gemm/swizzle.cuh"
#include "matmill/gemm/warp_tile.cuh"
#include "matmill/word.cuh"

namespace matmill {

// Copies one operand's tile to shared memory. "outer" runs along m (for A) or n (for B). A tile has EXTENT rows of BK
// elements (K_INNER), or BK rows of EXTENT elements.
template <class Scalar, int EXTENT, int BK, int THREADS, bool K_INNER, int VEC>
struct MmaTileCopy {
  static constexpr int ROW = K_INNER ? BK : EXTENT, ROW_BYTES = ROW * 2, ROWS = K_INNER ? EXTENT : BK;
  static constexpr int BYTES = ROWS * ROW_BYTES;
  static constexpr int V = 8, PIECES = ROW / V;                             // pieces of 16 bytes
  static constexpr int ADVANCE = THREADS / PIECES, SLOTS = ROWS / ADVANCE;  // rows per pass of the block, and passes
  static_assert(PIECES * ADVANCE == THREADS && SLOTS * ADVANCE == ROWS, "passes of all threads must cover the tile");
  static_assert(ADVANCE % 8 == 0, "every pass must have the same swizzle");
#if __CUDA_ARCH__ >= 800
  static constexpr bool DIRECT = VEC > 1;
#else
  static constexpr bool DIRECT = false;
#endif
  static constexpr int COPIES = V / VEC;                       // copies per piece
  static constexpr int COPY_STEPS = DIRECT ? BK / 16 - 1 : 1;  // steps over which a tile's copies are spread

  const Scalar* next;            // this thread's first element of the next tile
  long long row_stride, stride;  // from one row to the next, from one element of a row to the next
  unsigned offset;               // this thread's first piece in the tile, in bytes
  int outer_left, k_left;        // extent of the matrix from this thread's first element
  uint4 held[DIRECT ? 1 : SLOTS];

  __device__ __forceinline__ MmaTileCopy(const Scalar* origin, long long outer_stride, long long k_stride,
                                         int outer_left, int k) {
    const unsigned piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES;
    offset = swizzled<ROW_BYTES>(row, piece);
    row_stride = K_INNER ? outer_stride : k_stride;
    stride = VEC > 1 ? 1 : K_INNER ? k_stride : outer_stride;
    next = origin + row * row_stride + piece * V * stride;
    this->outer_left = outer_left - int(K_INNER ? row : piece * V);
    k_left = k - int(K_INNER ? piece * V : row);
  }

  // Issues the copies of one of COPY_STEPS steps; the last step advances to the next tile. tile is a shared-memory
  // address. Elements past the matrix's end become zeros.
  __device__ __forceinline__ void issue(unsigned tile, int copy_step) {
    const int first = SLOTS * copy_step / COPY_STEPS, end = SLOTS * (copy_step + 1) / COPY_STEPS;
    const Scalar* source = next + first * ADVANCE * row_stride;
    const int inner_left = K_INNER ? k_left : outer_left;
#pragma unroll
    for (int s = first; s < end; ++s) {
      const bool inside = s * ADVANCE < (K_INNER ? outer_left : k_left);
      alignas(16) unsigned words[4] = {};
#pragma unroll
      for (int p = 0; p < COPIES; ++p) {
        // Copied whole or not at all: the extent is a multiple of VEC, or zeros follow it in memory.
        const bool keep = inside && p * VEC < inner_left;
        const Scalar* from = source + p * VEC * stride;
        if constexpr (DIRECT) {
          ptx::cp_async_zfill<VEC * 2>(tile + offset + s * ADVANCE * ROW_BYTES + p * VEC * 2, from, keep);
        } else if (keep) {
          if constexpr (VEC == 1) {
            words[p / 2] |= unsigned(from->bits) << p % 2 * 16;
          } else {
            copy<VEC / 2>(&words[p * VEC / 2], reinterpret_cast<const unsigned*>(from));
          }
        }
      }
      if constexpr (!DIRECT) held[s] = uint4{words[0], words[1], words[2], words[3]};
      source += ADVANCE * row_stride;
    }
    if (copy_step == COPY_STEPS - 1) {
      next += BK * (K_INNER ? stride : row_stride);
      k_left -= BK;
    }
  }

  // Stores what issue() left in registers to shared memory.
  __device__ __forceinline__ void store_held(unsigned char* tile) const {
    if constexpr (!DIRECT) {
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) *reinterpret_cast<uint4*>(tile + offset + s * ADVANCE * ROW_BYTES) = held[s];
    }
  }
};

// Reads a warp's 16x16 matrices from a tile. A lane's addresses differ by constants, XORed or added: a step along a row
// changes bits of the piece's index that are 0 in the lane's first piece, and a step of 16 rows changes no bit that the
// swizzle uses. Tiles begin at multiples of 128 bytes, so the XOR affects the lane's offset alone, and is computed once
// before the loop.
template <bool K_INNER, int ROW_BYTES>
struct MmaReader {
  unsigned lane;  // of this lane's first row, in bytes from the tile

  // first: the warp's first outer index. B needs its two n8 tiles in adjacent registers, A its two groups of 8 rows.
  __device__ __forceinline__ MmaReader(unsigned first, bool of_a) {
    const unsigned l = threadIdx.x % 32;
    const bool halves_last = of_a == K_INNER;  // lanes 16-31 address the second piece, else rows 8-15
    const unsigned row = halves_last ? l % 16 : l % 8 + l / 16 * 8, piece = halves_last ? l / 16 : l / 8 % 2;
    lane = K_INNER ? swizzled<ROW_BYTES>(first + row, piece) : swizzled<ROW_BYTES>(row, first / 8 + piece);
  }

  // Matrix i of the warp's tile at step s of k.
  __device__ __forceinline__ void read(unsigned (&x)[4], unsigned tile, int i, int s) const {
    const int along = (K_INNER ? s : i) * 32, down = (K_INNER ? i : s) * 16 * ROW_BYTES;
    ptx::ldmatrix<!K_INNER>(x, tile + (lane ^ along % 128) + along / 128 * 128 + down);
  }
};

template <class Scalar, class Config>
struct MmaGemm {
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, STAGES = Config::STAGES, STEPS = BK / 16;
  static constexpr int WARPS_N = Config::WARPS_N, WARPS = Config::WARPS_M * WARPS_N, THREADS = WARPS * 32;
  static constexpr int WM = BM / Config::WARPS_M, WN = BN / WARPS_N;
  static constexpr bool A_K_INNER = Config::A_K_INNER != 0, B_K_INNER = Config::B_K_INNER != 0;
  static_assert(WM * Config::WARPS_M == BM && WN * WARPS_N == BN, "warp tiles must cover the block tile");
  static_assert((WM & (WM - 1)) == 0 && (WN & (WN - 1)) == 0,
                "XOR replaces addition: a warp's first piece has zeros where steps have ones");
  static_assert(STEPS % 2 == 0, "fragments are double-buffered in registers");
  static_assert(STAGES >= 2, "one stage computes while another is in flight");

  using CopyA = MmaTileCopy<Scalar, BM, BK, THREADS, A_K_INNER, Config::A_VEC>;
  using CopyB = MmaTileCopy<Scalar, BN, BK, THREADS, B_K_INNER, Config::B_VEC>;
  using Warp = WarpTile<Scalar, Config::ACC16 != 0, WM, WN>;
  static constexpr int STAGE = CopyA::BYTES + CopyB::BYTES;  // a stage holds A's tile, then B's
  static constexpr int PITCH = WN + 8;                       // floats per row of a warp's epilogue staging buffer
  static constexpr int STAGING = 16 * PITCH;
  static constexpr int SHARED_BYTES = STAGES * STAGE > WARPS * STAGING * 4 ? STAGES * STAGE : WARPS * STAGING * 4;
  static_assert(SHARED_BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");

  Warp warp;
  int row, column;  // of the warp's first output in the block's tile

  __device__ __forceinline__ MmaGemm() {
    const int w = threadIdx.x / 32;
    row = w / WARPS_N * WM;
    column = w % WARPS_N * WN;
  }

  // sums += A tile row * B tile column over all of k. `shared` holds SHARED_BYTES, aligned to 128.
  __device__ __forceinline__ void run(unsigned char* shared, CopyA copy_a, CopyB copy_b, int k) {
    const int tiles = (k + BK - 1) / BK;
    const unsigned stages = ptx::shared_address(shared);
    auto issue = [&](int stage, int copy_step) {
      if (copy_step < CopyA::COPY_STEPS) copy_a.issue(stages + stage, copy_step);
      if (copy_step < CopyB::COPY_STEPS) copy_b.issue(stages + stage + CopyA::BYTES, copy_step);
    };
    auto store_held = [&](int stage) {
      copy_a.store_held(shared + stage);
      copy_b.store_held(shared + stage + CopyA::BYTES);
    };
    // Tiles past the end are zero-filled. Issuing them costs little and keeps the number of groups constant.
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
#pragma unroll
      for (int copy_step = 0; copy_step < STEPS - 1; ++copy_step) issue(s * STAGE, copy_step);
      ptx::cp_async_commit();
      store_held(s * STAGE);
    }
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();

    const MmaReader<A_K_INNER, CopyA::ROW_BYTES> reader_a(row, true);
    const MmaReader<B_K_INNER, CopyB::ROW_BYTES> reader_b(column, false);
    typename Warp::Fragment f[2];
    auto read = [&](typename Warp::Fragment& to, int stage, int s) {
#pragma unroll
      for (int i = 0; i < Warp::TM; ++i) reader_a.read(to.a[i], stages + stage, i, s);
#pragma unroll
      for (int j = 0; j < Warp::TN / 2; ++j) reader_b.read(to.b[j], stages + stage + CopyA::BYTES, j, s);
    };
    int reading = 0, writing = (STAGES - 1) * STAGE;
    read(f[0], reading, 0);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        if (s == STEPS - 1) {
          store_held(writing);
          ptx::cp_async_commit();
          ptx::cp_async_wait<STAGES - 2>();
          __syncthreads();
          writing = reading;
          reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
        }
        read(f[(s + 1) % 2], reading, (s + 1) % STEPS);
        if (s < STEPS - 1) issue(writing, s);
        warp.multiply(f[s % 2]);
      }
    }
    ptx::cp_async_wait<0>();
  }

  // D = alpha * sums + beta * C where the tile is inside m x n. Strides and pointers are those of C and D.
  //
  //   per 16 rows of the warp tile: lanes write sums to the warp's staging buffer │ lanes read its rows and write D
  //
  // An mma leaves a lane pairs of sums: a direct store would write 16 bytes to each of eight rows. Staged in shared
  // memory, a warp stores rows of up to 128 bytes, 16 bytes per lane, and reads C the same way. Each warp has its own
  // buffer, so one barrier is enough.
  __device__ __forceinline__ void store(unsigned char* shared, const Scalar* C, long long c_row, long long c_col,
                                        Scalar* D, long long d_row, long long d_col, Origin origin, int m, int n,
                                        float alpha, float beta) const {
    __syncthreads();  // the stages become staging buffers
    const unsigned lane = threadIdx.x % 32;
    float* const staging = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * STAGING;
    float2* const own = reinterpret_cast<float2*>(staging) + lane / 4 * (PITCH / 2) + lane % 4;
    const int first_row = origin.row + row, first_column = origin.column + column;
    // Whether C allows 16-byte reads. The host passes no alignment for C.
    const bool c_wide = c_col == 1 && (c_row * 2 | reinterpret_cast<unsigned long long>(C)) % 16 == 0;
#pragma unroll
    for (int i = 0; i < Warp::TM; ++i) {
      if (i > 0) __syncwarp();
#pragma unroll
      for (int j = 0; j < Warp::TN; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const ptx::Accumulator<Config::ACC16 != 0>& sums = warp.sums[i][j];
          own[(half * 8 * PITCH + j * 8) / 2] = float2{sums[half * 2], sums[half * 2 + 1]};
        }
      }
      __syncwarp();
      if constexpr (Config::D_VEC == 8) {
        constexpr int LANES = WN / 8;  // per row
#pragma unroll
        for (int r = 0; r < 16; r += 32 / LANES) {
          store_vector(staging, r + lane / LANES, lane % LANES * 8, C, c_row, c_col, c_wide, D, d_row,
                       first_row + i * 16, first_column, m, n, alpha, beta);
        }
      } else {
        for (int e = lane; e < 16 * WN; e += 32) {
          const int r = first_row + i * 16 + e / WN, c = first_column + e % WN;
          if (r < m && c < n) {
            const float x = staging[e / WN * PITCH + e % WN];
            D[r * d_row + c * d_col] =
                Scalar::rounded(beta == 0.0f ? alpha * x : blend(alpha, x, beta, C[r * c_row + c * c_col].widened()));
          }
        }
      }
    }
  }

  // Stores eight adjacent outputs. row and column are relative to the staging buffer.
  static __device__ __forceinline__ void store_vector(const float* staging, int row, int column, const Scalar* C,
                                                      long long c_row, long long c_col, bool c_wide, Scalar* D,
                                                      long long d_row, int first_row, int first_column, int m, int n,
                                                      float alpha, float beta) {
    // Eight lanes read 16 bytes each per pass, 32 bytes apart. Every other four lanes read the second half first, so
    // that a pass uses all banks.
    const float* const from = &staging[row * PITCH + column];
    const unsigned swapped = threadIdx.x / 4 % 2;
    const float4 one = *reinterpret_cast<const float4*>(from + swapped * 4);
    const float4 other = *reinterpret_cast<const float4*>(from + 4 - swapped * 4);
    const float4 low = swapped ? other : one, high = swapped ? one : other;
    const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const int r = first_row + row, c = first_column + column;
    if (r >= m || c >= n) return;  // n is a multiple of 8
    alignas(16) unsigned words[4] = {}, out[4];
    if (beta != 0.0f) {  // beta = 0 must not read C: it may hold NaN, or not exist
      if (c_wide) {
        copy<4>(words, reinterpret_cast<const unsigned*>(&C[r * c_row + c]));
      } else {
#pragma unroll
        for (int v = 0; v < 8; ++v) words[v / 2] |= unsigned(C[r * c_row + (c + v) * c_col].bits) << v % 2 * 16;
      }
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      out[p] = beta == 0.0f ? Warp::pair(alpha * x[2 * p], alpha * x[2 * p + 1])
                            : Warp::pair(blend(alpha, x[2 * p], beta, Scalar::lower(words[p])),
                                         blend(alpha, x[2 * p + 1], beta, Scalar::upper(words[p])));
    }
    copy<4>(reinterpret_cast<unsigned*>(&D[r * d_row + c]), out);
  }
};

}  // namespace matmill
