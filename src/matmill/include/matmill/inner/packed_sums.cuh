// A block's partial sums on their way to memory, row by row.
//
//   Product's sums, in whatever order its threads have them ─▶ shared [M][PITCH] ─▶ barrier ─▶ memory [M][N]
//
// Lanes of the matrix units have outputs of many rows, and where a lane loads neighbouring columns at once, neighbours of
// one lane: each store of a warp would touch 8 to 32 sectors for 128 bytes. With PITCH as it is two lanes at most meet in a
// bank, whichever way they have them. On an H200 128 x 128 outputs of 132 blocks are written in 20 us less so where
// columns lie side by side and 4 where rows do, 100 x 100 in 13 and 4. Few outputs are written before another barrier
// would be passed.
#pragma once

namespace matmill {

// THREADS of a block, of which Product::sum uses SUM_BYTES of shared memory. UNITS: whatever Product needs besides, there
// is shared memory for the rows; else only what Product has anyway.
template <class Product, int THREADS, bool UNITS>
struct PackedSums {
  static constexpr int M = Product::M, N = Product::N;
  static constexpr int PITCH = N + (41 - N % 32) % 32;  // 9 more than a multiple of the banks
  static constexpr int FIRST = (Product::SUM_BYTES + 15) / 16 * 16;
  static constexpr int NEEDED = FIRST + M * PITCH * int(sizeof(Acc));
  static constexpr bool MANY = M * N >= 1024 && (UNITS || NEEDED <= Product::SHARED_BYTES);
  static constexpr int BYTES = MANY ? NEEDED : 0;

  // Every thread of the block calls it.
  static __device__ __forceinline__ void write(Product& product, unsigned char* shared, Acc* to) {
    if constexpr (MANY) {
      Acc* const rows = reinterpret_cast<Acc*>(shared + FIRST);
      __syncthreads();  // the stages become the place of the rows
      product.sum(shared, [&](int row, int column, Acc sum) { rows[row * PITCH + column] = sum; });
      __syncthreads();
#pragma unroll 4
      for (int at = threadIdx.x; at < M * N; at += THREADS) to[at] = rows[at / N * PITCH + at % N];
    } else {
      product.sum(shared, [&](int row, int column, Acc sum) { to[row * N + column] = sum; });
    }
  }
};

}  // namespace matmill
