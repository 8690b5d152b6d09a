// A tile of the warp-specialised product: its constants, what its stages hold, and where shared memory has them.
//
//   stage    A, then B, each of 128 bytes of k per row or column, as TMA leaves them with a 128-byte swizzle:
//            K-major    [BM or BN][128 bytes of k], one box
//            MN-major   boxes of [64 k][64 m or n], 16-bit elements alone
//            an A whose rows start anywhere has another layout (unaligned.cuh)
//   shared   STAGES stages │ staging of D, a part per warp group │ a full and an empty barrier per stage
#pragma once

#include "kernels/shared/pipeline_slot.cuh"
#include "matmill/dtype/half.cuh"
#include "matmill/ptx/cp_async.cuh"
#include "matmill/ptx/wgmma.cuh"

namespace matmill {

// What stages hold: elements, or pieces of them.
template <class Scalar, int PIECES>
struct StagedElement {
  using Type = Scalar;
};
template <>
struct StagedElement<float, 1> {
  using Type = Half;
};

template <class Scalar>
struct WgmmaOperand {
  using Type = Scalar;
};
template <>
struct WgmmaOperand<float> {
  using Type = ptx::Tf32;
};

constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

template <class Scalar, class Config>
struct WgmmaTile {
  static constexpr int BM = Config::BM, BN = Config::BN, STAGES = Config::STAGES;
  static constexpr int SPAN = 128, BK = SPAN / int(sizeof(Scalar));  // bytes of the swizzle, and elements of k
  static constexpr int STEPS = SPAN / 32;                            // products along a stage's k
  static constexpr bool A_K_MAJOR = Config::A_K_INNER != 0, B_K_MAJOR = Config::B_K_INNER != 0;
  static constexpr int BOX = 64 * SPAN;  // bytes of an MN-major box
  // A in registers: rows of its stage, which are those of A or of its transpose, and bytes from one to the next.
  static constexpr bool A_IN_REGISTERS = Config::A_IN_REGISTERS != 0, A_PAIRED = Config::A_PAIRED != 0;
  // Row r of 64 is row r / 8 + r % 8 * 8 of the products, so that a warp's eight rows of a fragment have one shift.
  static constexpr bool INTERLEAVED = Config::INTERLEAVED != 0;
  static constexpr int A_RUNS = A_K_MAJOR ? BM : BK, A_PITCH = (A_K_MAJOR ? SPAN : 2 * BM) + 16;
  static constexpr int A_BYTES = A_IN_REGISTERS ? A_RUNS * A_PITCH : BM * SPAN;
  static constexpr int B_BYTES = (B_K_MAJOR ? BN : (BN + 63) / 64 * 64) * SPAN;  // whole boxes
  static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;

  // Pieces of a matrix (pieces/split.cuh), and so the stages of a k-step: one where elements are multiplied as they are.
  static constexpr int PIECES = Config::PIECES != 0 ? 2 : 1;

  // Sums that a thread has of each output, of every CHAINS-th product along k, and adds at the end. Products that add to the
  // same registers follow one another: narrow ones are too short to hide the latency of the one before.
  static constexpr int CHAINS = Config::CHAINS;

  // Consumers share a tile's rows, or with PINGPONG alternate at whole tiles.
  static constexpr int CONSUMERS = Config::CONSUMERS, THREADS = 128 * (1 + CONSUMERS);
  static constexpr bool PINGPONG = Config::PINGPONG != 0;
  static constexpr int ROWS = PINGPONG ? BM : BM / CONSUMERS, ROW_TILES = ROWS / 64;  // of a warp group
  static constexpr int READERS = PINGPONG ? 1 : CONSUMERS;                            // warp groups that read a stage

  // Blocks of a cluster are neighbours, CLUSTER_M along m and CLUSTER_N along n: those of a row share A, those of a column
  // B. Ranks go along rows. Of what it shares each block loads a part for all, in whole patterns of the swizzle, eight
  // rows; where there are fewer parts than blocks, the others load none.
  static constexpr int CLUSTER_M = Config::CLUSTER_M, CLUSTER_N = Config::CLUSTER_N, CLUSTER = CLUSTER_M * CLUSTER_N;
  static constexpr int PEERS = CLUSTER_M + CLUSTER_N - 1;  // blocks that share an operand with one, itself among them
  static constexpr int A_PARTS = common_divisor(A_K_MAJOR ? BM / 8 : 8, CLUSTER_N);
  static constexpr int B_PARTS = common_divisor(B_K_MAJOR ? BN / 8 : 8, CLUSTER_M);

  // Or they share a tile: each has a slice of its k, and the first one adds the others' sums (cluster_sums.cuh).
  static constexpr int CLUSTER_K = Config::CLUSTER_K;

  // A warp group stages 64 rows and STAGED columns of D at a time, none where it stores its sums directly. Rows of
  // float32 are STAGED_PITCH elements apart: whole 128 bytes, which are swizzled, or an odd number of 32 bytes.
  static constexpr int STAGED = Config::STAGED;
  static constexpr int PROMOTED = Config::PROMOTED;  // k-steps of a promoted sum: there are twice as many sums
  static constexpr int STAGED_PITCH = STAGED % 32 == 0 && !INTERLEAVED ? STAGED : STAGED | 8;
  static constexpr int STAGING_BYTES = STAGED == 0 ? 0 : 64 * (Config::FLOAT32_D ? STAGED_PITCH * 4 : STAGED * 2);
  static constexpr int SHARED_BYTES = STAGES * (STAGE_BYTES + 16) + CONSUMERS * STAGING_BYTES;

  static_assert(PIECES == 1 || STAGES >= PIECES * PROMOTED, "the steps of a promoted sum are read twice");
  static_assert(SHARED_BYTES == Config::SHARED_BYTES, "host and device must agree on shared memory");
  static_assert(CHAINS == 1 || (PROMOTED == 0 && !A_IN_REGISTERS && PIECES == 1), "other main loops have one chain");
  static_assert(BK == Config::BK, "host and device must agree on k-steps");
  static_assert(ROW_TILES * 64 == ROWS, "a wgmma has 64 rows");
  static_assert(!PINGPONG || CONSUMERS == 2, "two warp groups alternate");
  static_assert(CLUSTER <= 8, "a cluster has at most eight blocks");
  static_assert(CLUSTER_K == 1 || (CLUSTER == 1 && !PINGPONG && BM * BN * 4 <= STAGES * STAGE_BYTES),
                "sums of a slice of k fit in the stages");
  static_assert((A_K_MAJOR && B_K_MAJOR) || sizeof(Scalar) == 2, "wgmma transposes 16-bit elements alone");
  static_assert(!A_IN_REGISTERS || (ROW_TILES == 1 && CLUSTER_N == 1 && sizeof(Scalar) == 2),
                "registers hold 64 rows of 16-bit A, which no other block loads");
  static_assert(!INTERLEAVED || (A_IN_REGISTERS && A_K_MAJOR), "rows of A are interleaved on their way to registers");
  static_assert(A_BYTES % 1024 == 0, "the swizzle of B repeats every 1024 bytes");

  using Operand = typename WgmmaOperand<Scalar>::Type;
  using Sums = float[ROW_TILES][BN / 2];
  using OtherSums = Sums[CHAINS > 1 ? CHAINS - 1 : 1];  // those of the chains but the first
};

// This thread's rows of its warp group's 64: `first` and the one NEXT further on, of fragments of A as of sums.
template <class Tile>
struct WgmmaRows {
  static constexpr int NEXT = Tile::INTERLEAVED ? 1 : 8;
  int first;

  __device__ __forceinline__ WgmmaRows()
      : first(Tile::INTERLEAVED ? threadIdx.x % 32 / 4 * 8 + threadIdx.x / 32 % 4 * 2
                                : threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) {}
};

// Addresses in shared memory.
template <class Tile>
struct WgmmaShared {
  unsigned stages, staging, full, empty;

  explicit __device__ __forceinline__ WgmmaShared(const void* start)
      : stages(ptx::shared_address(start)),
        staging(stages + Tile::STAGES * Tile::STAGE_BYTES),
        full(staging + Tile::CONSUMERS * Tile::STAGING_BYTES),
        empty(full + 8 * Tile::STAGES) {
    // Otherwise the compiler computes it again in each step.
    asm volatile("" : "+r"(stages), "+r"(full), "+r"(empty));
  }
};

}  // namespace matmill
