// D = activation(alpha * A * B + beta * C + bias) on Hopper's tensor cores, float32 sums: a persistent, warp-specialised
// kernel. One block per SM computes work tiles of BM x BN outputs (schedule.cuh); one thread loads, one to three warp
// groups multiply and store.
//
//   k-step j of a block, stage s = j % STAGES, round = j / STAGES
//     role                       waits until             how                                then
//     producer, one thread       s has been read         empty[s], parity (round + 1) % 2   expects bytes, loads A and B
//     consumers                  s has come              full[s], parity round % 2          products of 128 bytes of k
//     consumers                  step j - 1 is computed  wgmma_wait<1>                      each warp arrives at empty[s']
//   tile of a warp group
//     thread 0 of the group      the last store is read  bulk_wait_read<0>                  named barrier 1 + group
//     all of the group           staging is free         named barrier 1 + group            stmatrix, proxy fence, barrier
//     thread 0 of the group      staging is written      named barrier 1 + group            TMA store, commit
//   PINGPONG: a group's whole tile
//     all of the group           the other group has     named barrier 4 + group            main loop, then arrives at the
//                                issued its products                                        other group's barrier
//
// full[s] counts one arrival and the bytes of a stage that TMA brings, from whichever block of a cluster they come; empty[s]
// the warps that read it, in all blocks that share an operand with this one.
//
//   one slice of k:     wgmma_gemm ─▶ D
//   CLUSTER_K slices:   wgmma_gemm: sums in shared memory of a cluster's blocks ─▶ the first one ─▶ D
//   several slices:     wgmma_gemm ─▶ partial sums [batch][slice][m][n] ─▶ splitk_reduce ─▶ D
//   float32 in pieces:  split ─▶ two pieces of A and of B ─▶ wgmma_gemm, three products ─▶ D
//                       where elements are too small or too large for pieces: wgmma_gemm, mma.sync (pieces/again.cuh) ─▶ D
//   unaligned A or B:   repack ─▶ copies with 16-byte aligned rows ─▶ wgmma_gemm reads them instead
//   unaligned A:        wgmma_gemm, A through registers (unaligned.cuh): all of the producer's warp group copies A, and
//                       arrives at full[s] when its copies have come; consumers shift its elements into fragments
#include "matmill/ptx/cluster.cuh"
#include "matmill/ptx/dependent_launch.cuh"
#include "matmill/ptx/elect.cuh"
#include "matmill/ptx/setmaxnreg.cuh"
#include "kernels/pieces/again.cuh"
#include "kernels/wgmma/cluster_sums.cuh"
#include "kernels/wgmma/epilogue.cuh"
#include "kernels/wgmma/mainloop.cuh"
#include "kernels/wgmma/producer.cuh"

using Tile = matmill::WgmmaTile<matmill::StagedElement<Scalar, Config::PIECES>::Type, Config>;
using Shared = matmill::WgmmaShared<Tile>;
using Slot = matmill::PipelineSlot<Tile::STAGES>;
using Schedule = matmill::WgmmaSchedule<Tile, Config::GROUP_M>;
using Out = matmill::ResultOf<Scalar, Config::FLOAT32_D != 0>::Type;
using Outputs = matmill::GemmResult<Scalar, Out, Config>;

constexpr bool IN_CLUSTER = Tile::CLUSTER > 1, CLUSTER_SPLITS_K = Tile::CLUSTER_K > 1;

// Tells the producers of the cluster that load this block's operands that this warp has read a stage: its products are
// complete.
__device__ __forceinline__ void release(unsigned empty, int rank) {
  const int lane = threadIdx.x % 32;
  if constexpr (Tile::A_IN_REGISTERS) __syncwarp();  // all lanes have loaded fragments
  if constexpr (IN_CLUSTER) {
    const bool peer = lane / Tile::CLUSTER_N == rank / Tile::CLUSTER_N || lane % Tile::CLUSTER_N == rank % Tile::CLUSTER_N;
    if (lane < Tile::CLUSTER && peer) matmill::ptx::mbarrier_arrive_cluster_relaxed(matmill::ptx::map_shared_rank(empty, lane));
  } else {
    if (lane == 0) matmill::ptx::mbarrier_arrive(empty);
  }
}

// Grid: as many clusters as fit the GPU, at most one per work tile; with CLUSTER_K one per work tile. Maps of A and B
// have boxes of 128 bytes of k and BM or BN rows, or of 64 k and 64 rows where they are MN-major, a part of the rows or the
// k where a cluster shares the operand; that of D has the staging buffer's boxes, and is another one's where D is stored
// otherwise. `workspace` holds the partial sums of split-K, or sizes and exponents of matrices in pieces (pieces/piece.cuh).
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 1) wgmma_gemm(PARAMETERS) {
  using namespace matmill::ptx;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const Shared shared(dynamic);
  const int rank = IN_CLUSTER || CLUSTER_SPLITS_K ? int(cluster_rank()) : 0;
  // The producer's warp computes its first tile meanwhile. One thread: a fence by each of several took 0.5 us longer (an
  // H200, 2026-11-27).
  if (threadIdx.x == 32) {
    prefetch_tensor_map(&a_map);
    prefetch_tensor_map(&b_map);
    for (int s = 0; s < Tile::STAGES; ++s) {
      mbarrier_init(shared.full + 8 * s, Tile::A_IN_REGISTERS ? 129 : 1);
      mbarrier_init(shared.empty + 8 * s, 4 * Tile::READERS * Tile::PEERS);
    }
    fence_mbarrier_init();
  }
  constexpr int BLOCKS = Tile::CLUSTER * Tile::CLUSTER_K;
  const Schedule schedule(m, n, k, slices, batch);
  matmill::WorkTiles<Schedule> tiles(schedule, rank, blockIdx.x / BLOCKS, gridDim.x / BLOCKS);
  if constexpr (IN_CLUSTER) {
    cluster_sync();  // a block must not multicast to one whose barriers do not exist yet
  } else {
    __syncthreads();
  }
  wait_then_trigger();
  const matmill::WholeOperands whole{static_cast<const float*>(A), static_cast<const float*>(B), a_row, a_column,
                                     a_batch, b_row, b_column, b_batch, k, batch};
  const Outputs all{static_cast<const Out*>(C), bias, c_row, c_column, bias_stride, alpha, beta, m, n};
  if (matmill::multiplied_again<Config>(dynamic, shared.full, 2 * Tile::STAGES, workspace, deepest, whole, all,
                                        static_cast<Out*>(D), d_row, d_column, d_batch, c_batch)) {
    return;
  }

  Slot slot;
  const auto unaligned = [&](const matmill::WorkTile& work) {
    const auto* const first = reinterpret_cast<const unsigned char*>(static_cast<const Scalar*>(A) + work.batch * a_batch);
    return matmill::UnalignedRuns{first, 2 * a_pitch, Tile::A_K_MAJOR ? m : k, Tile::A_K_MAJOR ? k : m};
  };
  // From one lane: then the compiler knows that a warp's lanes go one way, and keeps descriptors in uniform registers.
  const int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (role == 0) {
    if constexpr (Config::PRODUCER_REGISTERS != 0) setmaxnreg_dec<Config::PRODUCER_REGISTERS>();
    int filled = 0;
    if constexpr (Tile::A_IN_REGISTERS) {
      for (; tiles.any(); tiles.next()) {
        const matmill::WorkTile& work = tiles.tile;
        matmill::UnalignedCopies<Tile> copies(unaligned(work), work.row, work.first * Tile::BK);
        matmill::load_work<Tile>(work, slot, filled, shared, &b_map, b_batched != 0, rank, threadIdx.x == 0,
                                 [&](unsigned stage, unsigned full, int, int) {
                                   copies.load(stage);
                                   cp_async_mbarrier_arrive(full);
                                 });
      }
    } else if (threadIdx.x < 32 && elect_one()) {
      const matmill::Sharing sharing = matmill::sharing_a<Tile>(rank);
      for (; tiles.any(); tiles.next()) {
        const matmill::WorkTile& work = tiles.tile;
        matmill::load_work<Tile>(work, slot, filled, shared, &b_map, b_batched != 0, rank, true,
                                 [&](unsigned stage, unsigned full, int k, int piece) {
                                   const int matrix = a_batched != 0 ? work.batch * Tile::PIECES : 0;
                                   matmill::load_operand<Tile::BM, Tile::A_K_MAJOR, Tile::CLUSTER_N, Tile::A_PARTS, Tile>(
                                       stage, &a_map, full, k, work.row, matrix + piece, sharing);
                                 });
      }
    }
    __syncwarp();
    if constexpr (CLUSTER_SPLITS_K) cluster_sync();
  } else {
    if constexpr (Config::CONSUMER_REGISTERS != 0) setmaxnreg_inc<Config::CONSUMER_REGISTERS>();
    const int group = role - 1, barrier = 1 + group, turn = 4;
    const unsigned staging = shared.staging + group * Tile::STAGING_BYTES;
    const int first_row = Tile::PINGPONG ? 0 : group * Tile::ROWS;
    if constexpr (Tile::PINGPONG) {
      if (group == 1) {
        barrier_arrive<256>(turn);  // the first turn is group 0's
        slot.skip(tiles.tile.steps * Tile::PIECES);
        tiles.next();
      }
    }
    for (; tiles.any(); tiles.next(Tile::PINGPONG ? 2 : 1)) {
      const matmill::WorkTile work = tiles.tile;
      const bool another = tiles.another();  // PINGPONG: of the other group
      if constexpr (Tile::PINGPONG) barrier_sync<256>(turn + group);
      Tile::Sums sums;
      const auto issued = [&] {
        if constexpr (Tile::PINGPONG) {
          if (another) barrier_arrive<256>(turn + 1 - group);
        }
      };
      const auto released = [&](int stage) { release(shared.empty + 8 * stage, rank); };
      if constexpr (Tile::PIECES > 1) {
        matmill::multiply_pieces(sums, slot, shared, work.steps, first_row, released, issued);
      } else if constexpr (Tile::PROMOTED != 0) {
        matmill::multiply_promoted(sums, slot, shared, work.steps, first_row, released, issued);
      } else if constexpr (Tile::A_IN_REGISTERS) {
        const matmill::UnalignedFragments<Tile> fragments(unaligned(work), first_row);
        matmill::multiply_unaligned(sums, slot, shared, work.steps, fragments, released, issued);
      } else {
        matmill::multiply(sums, slot, shared, work.steps, first_row, released, issued);
      }
      if constexpr (Tile::PINGPONG) {
        if (another) slot.skip(schedule.at(tiles.index + tiles.stride, rank).steps * Tile::PIECES);
      }
      if constexpr (CLUSTER_SPLITS_K) {
        matmill::add_in_cluster<Tile>(sums, shared.stages, rank, turn);
        if (rank > 0) break;
      }
      if constexpr (Config::PIECES == 1) {
        const auto* const exponents = static_cast<const int*>(workspace) + 2 * matmill::SIZES;
        matmill::scale_back<Tile>(sums, exponents + (a_batched != 0 ? Index(work.batch) * m : 0),
                                  exponents + b_exponents + (b_batched != 0 ? Index(work.batch) * n : 0), m, n,
                                  work.row + first_row, work.column);
      }
      // Partial sums are the D of a slice.
      const Index part = Config::PARTIAL_SUMS ? (Index(work.batch) * slices + work.slice) * m * n : work.batch * d_batch;
      Out* const to = static_cast<Out*>(Config::PARTIAL_SUMS ? workspace : D) + part;
      const Outputs outputs{static_cast<const Out*>(C) + work.batch * c_batch, bias, c_row, c_column, bias_stride,
                            Config::PARTIAL_SUMS ? 1.0f : alpha, beta, m, n};
      matmill::store_tile<Config, Tile>(sums, outputs, staging, &d_map, to, d_row, d_column, work.row + first_row,
                                        work.column, work.batch, barrier);
    }
    if ((Config::D_TMA || Config::D_ONE_RUN) && threadIdx.x % 128 == 0) bulk_wait_read<0>();  // shared memory outlives the stores' reads
    __syncwarp();
  }
  // The other blocks may still arrive at this one's barriers, or read its sums.
  if constexpr (IN_CLUSTER || CLUSTER_SPLITS_K) cluster_sync();
}
