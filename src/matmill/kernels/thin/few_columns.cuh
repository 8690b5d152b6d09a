// Chunks of BK k's of a matrix with at most FEW columns, in shared memory as numbers of the accumulator's type, in two
// buffers: one is read while the next chunk is on its way to the other.
//
//   32 and 64 bits   global ── cp.async ──▶ shared [FEW][PITCH]
//   16 bits          global ──▶ registers ── widened ──▶ shared [FEW][PITCH]
//
// A lane reads RUN consecutive k's of a column, 16 bytes at a time, and its LANES_K neighbours the runs that follow.
// The n-th 16 bytes of all these runs are adjacent, so that such a read has no bank conflicts:
//
//   RUN = 8, float   k = 0 1 2 3 │ 8 9 10 11 │ ... │ 4 5 6 7 │ 12 13 14 15 │ ...
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/ptx/cp_async.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// ALONG_K: neighbouring threads copy neighbouring k's, VEC at a time; otherwise neighbouring columns.
template <class Scalar, int FEW, int BK, int THREADS, bool ALONG_K, int VEC, int RUN, int LANES_K>
struct FewColumns {
  using Number = NumberOf<Scalar>;
  using Acc = typename Number::Acc;
  static constexpr int FULL = 16 / int(sizeof(Acc));
  static constexpr int WIDTH = RUN < FULL ? RUN : FULL;  // elements of one read
  static constexpr int GROUP = LANES_K * RUN;            // k's of the runs of all lanes
  static constexpr int PITCH = BK + FULL;  // padding spreads copies of neighbouring columns over the banks
  static constexpr int BUFFER = FEW * PITCH, BYTES = 2 * BUFFER * int(sizeof(Acc));
  static constexpr bool ASYNC = sizeof(Scalar) == sizeof(Acc);
  static constexpr int INNER = ALONG_K ? BK / VEC : FEW, ITEMS = FEW * BK / VEC;
  static constexpr int SLOTS = (ITEMS + THREADS - 1) / THREADS;
  static_assert(BK % GROUP == 0, "chunks are whole runs of all lanes");
  static_assert(VEC == 1 || (ALONG_K && ASYNC), "only copies along k, without a conversion, are wider than an element");
  static_assert(INNER % THREADS == 0 || THREADS % INNER == 0, "a thread's items differ by constants");

  // Where a k of the chunk is stored in its column.
  static __device__ __forceinline__ int place(int k) {
    if constexpr (RUN == WIDTH) return k;
    const int lane = k % GROUP / RUN, i = k % RUN;
    return k / GROUP * GROUP + i / WIDTH * (LANES_K * WIDTH) + lane * WIDTH + i % WIDTH;
  }

  // The thread's item s is its first one moved by constants: `inner` along the copies' dimension, `outer` across.
  static constexpr __device__ __forceinline__ int inner(int s) {
    return INNER > THREADS ? s % (INNER / THREADS) * THREADS : 0;
  }
  static constexpr __device__ __forceinline__ int outer(int s) {
    return INNER > THREADS ? s / (INNER / THREADS) : s * (THREADS / INNER);
  }

  Acc* shared;
  const Scalar* next;  // this thread's first element of the next chunk
  long long k_stride, column_stride;
  int first_k, first_column, columns;
  int left;  // k's from this thread's first one of the next chunk
  Scalar held[ASYNC ? 1 : SLOTS];

  __device__ __forceinline__ FewColumns(void* shared, const Scalar* first, long long k_stride, long long column_stride,
                                        int k, int columns)
      : shared(static_cast<Acc*>(shared)), k_stride(k_stride), column_stride(column_stride), columns(columns) {
    const int fast = threadIdx.x % INNER, slow = threadIdx.x / INNER;
    first_k = ALONG_K ? fast * VEC : slow;
    first_column = ALONG_K ? slow : fast;
    next = first + first_k * k_stride + first_column * column_stride;
    left = k - first_k;
  }

  // Starts to copy the next chunk. What is past the end of k or of the columns becomes zero.
  __device__ __forceinline__ void start(int buffer) {
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const int k = ALONG_K ? inner(s) * VEC : outer(s), column = ALONG_K ? outer(s) : inner(s);
      if (ITEMS % THREADS == 0 || threadIdx.x + s * THREADS < ITEMS) {
        const bool inside = k < left && first_column + column < columns;
        const Scalar* const source = next + k * k_stride + column * column_stride;
        if constexpr (ASYNC) {
          const unsigned to = ptx::shared_address(at(buffer, first_k + k, first_column + column));
          ptx::cp_async_zfill<VEC * sizeof(Scalar)>(to, source, inside);
        } else {
          held[s] = Scalar{};
          if (inside) held[s] = *source;
        }
      }
    }
    if constexpr (ASYNC) ptx::cp_async_commit();
    next += BK * k_stride;
    left -= BK;
  }

  // This thread's share of that chunk is in shared memory afterwards.
  __device__ __forceinline__ void finish(int buffer) {
    if constexpr (ASYNC) {
      ptx::cp_async_wait<0>();
    } else {
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) {
        const int k = ALONG_K ? inner(s) : outer(s), column = ALONG_K ? outer(s) : inner(s);
        if (ITEMS % THREADS == 0 || threadIdx.x + s * THREADS < ITEMS) {
          *at(buffer, first_k + k, first_column + column) = Number::up(held[s]);
        }
      }
    }
  }

  // A lane's run of a column: the group is that of its k's.
  __device__ __forceinline__ void read(Acc (&run)[RUN], int buffer, int group, int lane, int column) const {
    const Acc* const from = shared + buffer * BUFFER + column * PITCH + group * GROUP + lane * WIDTH;
#pragma unroll
    for (int i = 0; i < RUN; i += WIDTH) copy<WIDTH>(&run[i], from + i * LANES_K);
  }

 private:
  __device__ __forceinline__ Acc* at(int buffer, int k, int column) const {
    return shared + buffer * BUFFER + column * PITCH + place(k);
  }
};

}  // namespace matmill
