// Splits float32 matrices into two pieces of 11 bits, whose products tensor cores compute.
//
//   x ── times a power of two ──▶ y = high + low / 2^11 + at most 2^-23 of y ──▶ [matrix][piece][run][pitch]
//
//   float16   the power of two brings the largest element of a row of A, or of a column of B, to 2^14 .. 2^15. `low` has a
//             scale of its own: without it the pieces of elements 2^17 times smaller than the largest would lose bits
//   tf32      has float32's exponents: no power of two
//
// Runs go along k, or for float16 also along the other dimension, where the matrix is contiguous along that: then a
// cluster of blocks shares the columns of a strip, since a power of two depends on all of k.
//
// Each block says which size its smallest element has, 0 where pieces cannot hold one: sizes[block]. From them the product
// knows whether it is as exact as FMA (docs/precision.md).
#pragma once

#include "kernels/pieces/piece.cuh"
#include "matmill/ptx/cluster.cuh"

namespace matmill {

// A matrix as it is split: `count` products of `runs` runs of `length` elements. Strides are in elements.
template <class Piece>
struct SplitMatrix {
  const float* from;
  typename Piece::Type* to;
  int* exponents;  // of each row of A or column of B, those of the powers of two
  int count, runs, length, pitch;
  long long run_stride, stride, batch_stride;

  __device__ __forceinline__ typename Piece::Type* piece(int matrix, int number) const {
    return to + (2LL * matrix + number) * runs * pitch;
  }
};

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The exponent of the power of two by which a row or column is divided, whose largest element has these bits without sign.
// Down to -126, so that the power and its inverse are normal numbers.
__device__ __forceinline__ int exponent_of(unsigned largest) {
  const int biased = int(largest >> 23);
  return largest == 0 || biased == 255 ? 0 : max(biased - 127 - 14, -126);
}

// Splits one element, and returns the bits of its size after the division: 0 where pieces cannot hold it, and NO_ELEMENT
// where its size does not matter.
template <class Piece>
__device__ __forceinline__ unsigned split(float x, float inverse, typename Piece::Type& high, typename Piece::Type& low) {
  const float y = Piece::SCALED ? x * inverse : x;
  high = Piece::rounded(y);
  low = Piece::rounded((y - Piece::widened(high)) * LOW_SCALE);  // the difference is exact
  const unsigned size = magnitude(y);
  if (x == 0) return NO_ELEMENT;
  return size < Piece::TOO_SMALL || size >= Piece::TOO_LARGE ? 0 : Piece::SCALED ? size : NO_ELEMENT;
}

template <int LANES>
__device__ __forceinline__ unsigned largest_of_lanes(unsigned x) {
#pragma unroll
  for (int lane = LANES / 2; lane > 0; lane /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

// Splits runs along k, each by RUN_THREADS threads of a block of THREADS. A thread has four neighbouring elements at a
// time. Those of the first VECTORS passes stay in registers between the search for the largest and the split; of longer
// runs the rest is loaded again.
template <class Piece, int THREADS, int RUN_THREADS>
struct RunSplitter {
  static constexpr int VECTORS = 8, RUNS = THREADS / RUN_THREADS, WARPS = RUN_THREADS / 32, STEP = 4 * RUN_THREADS;
  static_assert(RUNS * RUN_THREADS == THREADS && WARPS > 0, "whole warps share a run");

  const SplitMatrix<Piece>& x;
  unsigned smallest = NO_ELEMENT;

  // Four elements of a run from element `first` on, zeros behind its end.
  __device__ __forceinline__ void load(float (&y)[4], const float* run, int first, bool wide) const {
    if (wide && first + 4 <= x.length) {
      const float4 four = *reinterpret_cast<const float4*>(run + first);
      y[0] = four.x, y[1] = four.y, y[2] = four.z, y[3] = four.w;
    } else {
#pragma unroll
      for (int v = 0; v < 4; ++v) y[v] = first + v < x.length ? run[(first + v) * x.stride] : 0.0f;
    }
  }

  __device__ __forceinline__ void store(const float (&y)[4], float inverse, typename Piece::Type* high,
                                        typename Piece::Type* low, int first) {
    using Type = typename Piece::Type;
    if (first >= x.length) return;
    struct alignas(4 * sizeof(Type)) Four {
      Type of[4];
    } highs, lows;
#pragma unroll
    for (int v = 0; v < 4; ++v) smallest = min(smallest, split<Piece>(y[v], inverse, highs.of[v], lows.of[v]));
    *reinterpret_cast<Four*>(high + first) = highs;  // a pitch is whole 16 bytes
    *reinterpret_cast<Four*>(low + first) = lows;
  }

  // Splits the block's runs, of `blocks` blocks.
  __device__ __forceinline__ void run(int block, int blocks) {
    __shared__ unsigned found[THREADS / 32];
    const int group = threadIdx.x / RUN_THREADS, thread = threadIdx.x % RUN_THREADS;
    const long long total = 1LL * x.count * x.runs;
    for (long long first = 1LL * block * RUNS; first < total; first += 1LL * blocks * RUNS) {
      const long long index = first + group;
      const int matrix = int(index / x.runs), number = int(index % x.runs);
      const bool inside = index < total;
      const int end = inside ? x.length : 0;
      const float* const from = x.from + (inside ? matrix * x.batch_stride + number * x.run_stride : 0);
      const bool wide = x.stride == 1 && reinterpret_cast<unsigned long long>(from) % 16 == 0;
      float held[VECTORS][4] = {};
      unsigned largest = 0;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        const int at = i * STEP + thread * 4;
        if (at < end) load(held[i], from, at, wide);
      }
      float inverse = 1;
      if constexpr (Piece::SCALED) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
          for (int v = 0; v < 4; ++v) largest = max(largest, magnitude(held[i][v]));
        }
        for (int at = VECTORS * STEP + thread * 4; at < end; at += STEP) {
          float y[4];
          load(y, from, at, wide);
#pragma unroll
          for (int v = 0; v < 4; ++v) largest = max(largest, magnitude(y[v]));
        }
        largest = largest_of_lanes<32>(largest);
        if constexpr (WARPS > 1) {
          if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = largest;
          __syncthreads();
          largest = largest_of_lanes<WARPS>(found[group * WARPS + threadIdx.x % WARPS]);
          __syncthreads();
        }
        const int exponent = exponent_of(largest);
        inverse = power_of_two(-exponent);
        if (inside && thread == 0) x.exponents[index] = exponent;
      }
      typename Piece::Type* const high = x.piece(matrix, 0) + 1LL * number * x.pitch;
      typename Piece::Type* const low = x.piece(matrix, 1) + 1LL * number * x.pitch;
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        const int at = i * STEP + thread * 4;
        if (at < end) store(held[i], inverse, high, low, at);
      }
      for (int at = VECTORS * STEP + thread * 4; at < end; at += STEP) {
        float y[4];
        load(y, from, at, wide);
        store(y, inverse, high, low, at);
      }
    }
  }

  // The same for tf32 of a matrix that is contiguous from run to run. A thread has four elements of four runs: a
  // warp loads 64 bytes of each of 8 elements' runs, and stores 128 bytes of each of four.
  __device__ __forceinline__ void run_transposed(int block, int blocks) {
    constexpr int SIDE = 4, HIGH = 16, LONG = 32;
    const int lane = threadIdx.x % 32, strips = (x.runs + HIGH - 1) / HIGH, steps = (x.length + LONG - 1) / LONG;
    const long long total = 1LL * x.count * strips * steps;
    const bool wide = reinterpret_cast<unsigned long long>(x.from) % 16 == 0 && x.stride % 4 == 0 && x.batch_stride % 4 == 0;
    for (long long index = 1LL * block * (THREADS / 32) + threadIdx.x / 32; index < total;
         index += 1LL * blocks * (THREADS / 32)) {
      const int matrix = int(index / strips / steps), number = int(index % strips) * HIGH + lane / 8 * SIDE;
      const int first = int(index / strips % steps) * LONG + lane % 8 * SIDE, left = x.runs - number;
      const float* const from = x.from + matrix * x.batch_stride + number + first * x.stride;
      float held[SIDE][SIDE] = {};
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
        if (first + k >= x.length) continue;
        if (wide && left >= SIDE) {
          const float4 four = *reinterpret_cast<const float4*>(from + k * x.stride);
          held[0][k] = four.x, held[1][k] = four.y, held[2][k] = four.z, held[3][k] = four.w;
        } else {
#pragma unroll
          for (int i = 0; i < SIDE; ++i) held[i][k] = i < left ? from[k * x.stride + i] : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < SIDE; ++i) {
        const long long run = 1LL * (number + i) * x.pitch;
        if (i < left) store(held[i], 1.0f, x.piece(matrix, 0) + run, x.piece(matrix, 1) + run, first);
      }
    }
  }
};

// Splits runs across k: a lane has a column of all runs of its block, and a cluster's blocks share the runs. Of a thread's
// elements HELD stay in registers between the search for the largest and the split, STAGED in shared memory; others are
// loaded again.
template <class Piece, int THREADS, int STAGED>
struct ColumnSplitter {
  using Type = typename Piece::Type;
  static constexpr int WARPS = THREADS / 32, HELD = 32, BATCH = 16;

  const SplitMatrix<Piece>& x;
  float* staged;
  unsigned smallest = NO_ELEMENT;

  __device__ __forceinline__ void run(int cluster, int clusters) {
    __shared__ unsigned found[WARPS][32], of_block[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, strips = (x.length + 31) / 32;
    const int rank = int(ptx::cluster_rank()), blocks = int(ptx::cluster_size());
    const int first = int(1LL * x.runs * rank / blocks) + warp, end = int(1LL * x.runs * (rank + 1) / blocks);
    const long long step = WARPS * x.run_stride, to_step = 1LL * WARPS * x.pitch, to_low = 1LL * x.runs * x.pitch;
    for (int item = cluster; item < x.count * strips; item += clusters) {
      const int matrix = item / strips, column = item % strips * 32 + lane;
      const bool inside = column < x.length;
      const int count = inside ? max(0, (end - first + WARPS - 1) / WARPS) : 0;
      const float* const from = x.from + matrix * x.batch_stride + column * x.stride + first * x.run_stride;
      float held[HELD];
      unsigned largest = 0;
      // `count` elements from number `base` on, zeros behind them.
      const auto load = [&](auto& some, int base) {
        const float* next = from + base * step;
#pragma unroll
        for (float& y : some) {
          y = base < count ? *next : 0.0f;
          ++base, next += step;
        }
      };
      const auto search = [&](const auto& some) {
#pragma unroll
        for (const float y : some) largest = max(largest, magnitude(y));
      };
      load(held, 0);
      search(held);
#pragma unroll 1
      for (int base = HELD; base < count; base += BATCH) {
        float some[BATCH];
        load(some, base);
        search(some);
        if (STAGED > 0 && base < HELD + STAGED) {
#pragma unroll
          for (int i = 0; i < BATCH; ++i) staged[(base - HELD + i) * THREADS + threadIdx.x] = some[i];
        }
      }
      found[warp][lane] = largest;
      __syncthreads();
#pragma unroll
      for (int w = 0; w < WARPS; ++w) largest = max(largest, found[w][lane]);
      if (blocks > 1) {
        if (warp == 0) of_block[lane] = largest;
        ptx::cluster_sync();
        const unsigned own = ptx::shared_address(&of_block[lane]);
#pragma unroll 1
        for (int other = 0; other < blocks; ++other)
          largest = max(largest, ptx::load_shared_cluster(ptx::map_shared_rank(own, other)));
        ptx::cluster_sync();  // all have read before a block goes on, or ends
      } else {
        __syncthreads();
      }
      const int exponent = exponent_of(largest);
      const float inverse = power_of_two(-exponent);
      if (rank == 0 && warp == 0 && inside) x.exponents[1LL * matrix * x.length + column] = exponent;
      Type* const to = x.piece(matrix, 0) + column + 1LL * first * x.pitch;
      const auto store = [&](const auto& some, int base) {
        Type* next = to + base * to_step;
#pragma unroll
        for (const float y : some) {
          if (base < count) {
            Type high, low;
            smallest = min(smallest, split<Piece>(y, inverse, high, low));
            next[0] = high;
            next[to_low] = low;
          }
          ++base, next += to_step;
        }
      };
      store(held, 0);
#pragma unroll 1
      for (int base = HELD; base < count; base += BATCH) {
        float some[BATCH];
        if (STAGED > 0 && base < HELD + STAGED) {
#pragma unroll
          for (int i = 0; i < BATCH; ++i) some[i] = staged[(base - HELD + i) * THREADS + threadIdx.x];
        } else {
          load(some, base);
        }
        store(some, base);
      }
    }
  }
};

}  // namespace matmill
