// Split-K reduction by the last block of the launch that wrote the partial sums. It saves the host a second launch.
//
//   partial sums [block][output] ─▶ barrier ─▶ one thread counts its block; all but the last block exit
//   last block: BS threads = WAYS x LANES, each with a vector of outputs
//     way w adds partial sums w, w + WAYS, … ─▶ registers (few vectors: ─▶ shuffles among a warp's ways)
//     ─▶ shared [ROWS][outputs] ─▶ one thread per output adds the rows in order
//
// One SM reads all partial sums: 40 to 50 bytes per clock on an H200 if its threads keep enough loads in flight. So
// there are as many LANES as vectors, and few threads idle. PITCH, the distance between the sums of two blocks, is not
// a multiple of a cache line: otherwise a warp's requests could be 4 KB apart, and take 1.8 times as long.
//
// The order of additions does not depend on which block is the last.
#pragma once

#include "matmill/dtype/epilogue.cuh"
#include "matmill/ptx/atomic.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// Whether this is the last of `blocks` blocks to arrive: the writes of all others are then visible. Every thread of the
// block must call it. *counter is 0 before the first block and after the last.
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
  __syncthreads();  // the block's writes become visible to thread 0, which releases them
  return __syncthreads_or(threadIdx.x == 0 && ptx::atom_inc_acq_rel(counter, blocks - 1) == blocks - 1);
}

// BLOCKS: resident blocks of BS threads per SM.
template <int BS, int OUTPUTS, int BLOCKS>
struct LastBlock {
  static constexpr int WIDTH = 16 / int(sizeof(Acc));            // outputs per vector
  static constexpr int VECTORS = (OUTPUTS + WIDTH - 1) / WIDTH;  // per block
  static constexpr int LINE_VECTORS = 8, SKEW = 2;               // vectors per cache line; vectors of padding
  static constexpr int PITCH = (VECTORS + (VECTORS % LINE_VECTORS == 0 ? SKEW : 0)) * WIDTH;
  static constexpr bool IN_WARP = VECTORS <= 4;
  static constexpr int LANES = VECTORS == 3 ? 4 : VECTORS < BS ? VECTORS : BS, WAYS = BS / LANES;
  // Loads that a thread keeps in flight: all of its own when every SM of a large GPU has its blocks, as far as
  // registers allow (four per vector). No more: a longer unrolled loop has more instructions to fetch from memory, with
  // no other work to hide that.
  static constexpr int LARGE_GPU_SMS = 132, OTHER_REGISTERS = 48;
  static constexpr int MIN_IN_FLIGHT = 6, MAX_IN_FLIGHT = WAYS == 1 ? 16 : 32;
  static constexpr int REGISTERS = BS * BLOCKS <= 256 ? 255 : 65536 / (BS * BLOCKS) / 8 * 8;
  static constexpr int clamp(int least, int x, int most) { return x < least ? least : x > most ? most : x; }
  static constexpr int FITTING = clamp(MIN_IN_FLIGHT, (REGISTERS - OTHER_REGISTERS) / 4, MAX_IN_FLIGHT);
  static constexpr int IN_FLIGHT = clamp(MIN_IN_FLIGHT, (LARGE_GPU_SMS * BLOCKS + WAYS - 1) / WAYS, FITTING);
  static constexpr int ROWS = IN_WARP ? BS / 32 : WAYS;
  static constexpr int BYTES = WAYS > 1 ? ROWS * LANES * WIDTH * int(sizeof(Acc)) : 0;

  // Zeroes the padding of a block's own last vector.
  static __device__ __forceinline__ void zero_padding(Acc* own) {
    if (threadIdx.x < VECTORS * WIDTH - OUTPUTS) own[OUTPUTS + threadIdx.x] = 0;
  }

  // Calls write(output, sum) once per output, from any thread. `shared` holds BYTES.
  template <class Write>
  static __device__ __forceinline__ void run(const Acc* sums, int count, Acc* shared, Write write) {
    const int lane = threadIdx.x % LANES, way = threadIdx.x / LANES;
    if constexpr (WAYS == 1) {
#pragma unroll 1
      for (int vector = threadIdx.x; vector < VECTORS; vector += BS) {
        Acc sum[WIDTH] = {};
        add(sum, sums + vector * WIDTH, 0, count);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          if (vector * WIDTH + i < OUTPUTS) write(vector * WIDTH + i, sum[i]);
        }
      }
    } else {
      Acc sum[WIDTH] = {};
      if (lane < VECTORS && way < WAYS) add(sum, sums + lane * WIDTH, way, count);
      combine_ways(sum, shared, lane, way, write);
    }
  }

 private:
  static __device__ __forceinline__ void add(Acc (&sum)[WIDTH], const Acc* sums, int way, int count) {
    using Bits = Word<16>::Type;
    for (int first = way; first < count; first += WAYS * IN_FLIGHT) {
      alignas(16) Acc loaded[IN_FLIGHT][WIDTH];
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; ++u) {
        const int i = first + u * WAYS;
        const Acc* const from = sums + i * PITCH;
        if (i < count) *reinterpret_cast<Bits*>(loaded[u]) = __ldcg(reinterpret_cast<const Bits*>(from));
      }
#pragma unroll
      for (int u = 0; u < IN_FLIGHT; ++u) {
        if (first + u * WAYS >= count) continue;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] += loaded[u][i];
      }
    }
  }

  template <class Write>
  static __device__ __forceinline__ void combine_ways(Acc (&sum)[WIDTH], Acc* shared, int lane, int way, Write write) {
    if constexpr (IN_WARP) {
#pragma unroll
      for (int distance = LANES; distance < 32; distance *= 2)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
    }
    const int row = IN_WARP ? threadIdx.x / 32 : way;
    if (IN_WARP ? threadIdx.x % 32 < LANES : way < WAYS) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) shared[(row * LANES + lane) * WIDTH + i] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int first = 0; first < OUTPUTS; first += BS) {
      const int output = first + threadIdx.x;
      if (output >= OUTPUTS) break;
      Acc total = 0;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) total += shared[i * LANES * WIDTH + output];
      write(output, total);
    }
    __syncthreads();  // the next product of the batch reuses `shared`
  }
};

}  // namespace matmill
