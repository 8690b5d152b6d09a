// What `finish` does, by the last block of the launch that wrote the partial sums: a second launch costs a host more.
//
//   partial sums [block][output] ─▶ barrier ─▶ one thread counts its block; all but the last block end
//   last block: BS threads = WAYS x LANES, each with a vector of outputs
//     way by way in steps of WAYS ─▶ registers (few vectors: ─▶ shuffles among a warp's ways)
//     ─▶ shared [SLICES][outputs] ─▶ one thread per output adds the slices in turn
//
// One multiprocessor reads all sums: 40 to 50 bytes per clock on an H200, if its threads ask for them at once. So LANES
// are as many as there are vectors, and few threads idle. PITCH, from one block's sums to the next one's, is no multiple
// of a line: a warp's requests would then follow each other 4 KB apart, and take 1.8 times as long.
//
// The order of additions does not depend on which block is the last.
#pragma once

#include "matmill/dtype/epilogue.cuh"
#include "matmill/ptx/atomic.cuh"
#include "matmill/word.cuh"

namespace matmill {

// Whether this is the last of `blocks` blocks to come here: all that the others wrote can then be read. Every thread of
// a block must call it. *counter is 0 before the first block and after the last.
__device__ __forceinline__ bool is_last(unsigned* counter, unsigned blocks) {
  __syncthreads();  // what the block has written, its first thread now passes on
  return __syncthreads_or(threadIdx.x == 0 && ptx::count_up(counter, blocks - 1) == blocks - 1);
}

// BLOCKS: of BS threads, that share a multiprocessor.
template <int BS, int OUTPUTS, int BLOCKS>
struct LastBlock {
  static constexpr int WIDTH = 16 / int(sizeof(Acc)), PLACES = (OUTPUTS + WIDTH - 1) / WIDTH;  // of vectors
  static constexpr int LINE = 8, APART = 2;                                                    // vectors
  static constexpr int PITCH = (PLACES + (PLACES % LINE == 0 ? APART : 0)) * WIDTH;
  static constexpr bool IN_WARP = PLACES <= 4;
  static constexpr int LANES = PLACES == 3 ? 4 : PLACES < BS ? PLACES : BS, WAYS = BS / LANES;
  // Vectors that a thread has under way: all of its own where a large GPU is full, as far as there are registers, of
  // which a vector takes four. No more: what is unrolled comes from memory once, when nothing else is left to do.
  static constexpr int LARGE = 132, LEAST = 6, MOST = WAYS == 1 ? 16 : 32, OTHERS = 48;
  static constexpr int REGISTERS = BS * BLOCKS <= 256 ? 255 : 65536 / (BS * BLOCKS) / 8 * 8;
  static constexpr int between(int least, int x, int most) { return x < least ? least : x > most ? most : x; }
  static constexpr int HELD = between(LEAST, (REGISTERS - OTHERS) / 4, MOST);
  static constexpr int AT_ONCE = between(LEAST, (LARGE * BLOCKS + WAYS - 1) / WAYS, HELD);
  static constexpr int SLICES = IN_WARP ? BS / 32 : WAYS;
  static constexpr int BYTES = WAYS > 1 ? SLICES * LANES * WIDTH * int(sizeof(Acc)) : 0;

  // Fills what pads a block's own last vector.
  static __device__ __forceinline__ void pad(Acc* own) {
    if (threadIdx.x < PLACES * WIDTH - OUTPUTS) own[OUTPUTS + threadIdx.x] = 0;
  }

  // Calls write(output, sum) once for every output, from some thread. `shared` holds BYTES.
  template <class Write>
  static __device__ __forceinline__ void run(const Acc* sums, int count, Acc* shared, Write write) {
    const int lane = threadIdx.x % LANES, way = threadIdx.x / LANES;
    if constexpr (WAYS == 1) {
#pragma unroll 1
      for (int place = threadIdx.x; place < PLACES; place += BS) {
        Acc sum[WIDTH] = {};
        add(sum, sums + place * WIDTH, 0, count);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          if (place * WIDTH + i < OUTPUTS) write(place * WIDTH + i, sum[i]);
        }
      }
    } else {
      Acc sum[WIDTH] = {};
      if (lane < PLACES && way < WAYS) add(sum, sums + lane * WIDTH, way, count);
      spread(sum, shared, lane, way, write);
    }
  }

 private:
  static __device__ __forceinline__ void add(Acc (&sum)[WIDTH], const Acc* sums, int way, int count) {
    using Bits = Word<16>::Type;
    for (int first = way; first < count; first += WAYS * AT_ONCE) {
      alignas(16) Acc some[AT_ONCE][WIDTH];
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        const int i = first + u * WAYS;
        const Acc* const from = sums + i * PITCH;
        if (i < count) *reinterpret_cast<Bits*>(some[u]) = __ldcg(reinterpret_cast<const Bits*>(from));
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; ++u) {
        if (first + u * WAYS >= count) continue;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] += some[u][i];
      }
    }
  }

  template <class Write>
  static __device__ __forceinline__ void spread(Acc (&sum)[WIDTH], Acc* shared, int lane, int way, Write write) {
    if constexpr (IN_WARP) {
#pragma unroll
      for (int apart = LANES; apart < 32; apart *= 2)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], apart);
    }
    const int slice = IN_WARP ? threadIdx.x / 32 : way;
    if (IN_WARP ? threadIdx.x % 32 < LANES : way < WAYS) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) shared[(slice * LANES + lane) * WIDTH + i] = sum[i];
    }
    __syncthreads();
#pragma unroll
    for (int first = 0; first < OUTPUTS; first += BS) {
      const int output = first + threadIdx.x;
      if (output >= OUTPUTS) break;
      Acc total = 0;
#pragma unroll
      for (int i = 0; i < SLICES; ++i) total += shared[i * LANES * WIDTH + output];
      write(output, total);
    }
    __syncthreads();  // `shared` is free again, for the next product of a batch
  }
};

}  // namespace matmill
