// Transpose-add in chunks; each block processes one or more chunks. X is transposed between shared memory and
// registers.
//
//   X ── 16-byte copies of a chunk to shared memory, in X's order ──▶ barrier ──┐
//   Y ── loads of D's vectors ──▶ registers ──▶ alpha * gathered X + beta * Y ◀─┘
//                                                   └─▶ 16-byte stores of D
//
// AHEAD = 0: each block processes one chunk, and blocks overlap each other. Otherwise the grid has as many blocks as
// are resident. A thread then makes the same SLOTS vectors of D in every chunk, so it computes their offsets in X once.
// AHEAD = 1: while one chunk is gathered, the next one is in flight, X in the other half of shared memory and Y in
// registers that X no longer needs: one barrier per chunk. AHEAD > 1: X and Y are copied to shared memory, with one
// buffer per chunk.
//
// A chunk is G matrices of M x N elements of D, whose vectors are numbered along rows, then down, then by matrix. M, N
// and G are compile-time constants. The kernel knows the operands' layout in global memory.
#pragma once

#include "kernels/transpose/vector.cuh"
#include "matmill/ptx/cp_async.cuh"
#include "matmill/ptx/dependent_launch.cuh"

namespace matmill {

using Index = long long;

__device__ __forceinline__ bool on_vectors(const void* start) {
  return reinterpret_cast<unsigned long long>(start) % 16 == 0;
}

// In shared memory X is stored column by column of D, COLUMN_PITCH apart, in X_VECTORS vectors. Kernels whose X starts
// inside a vector leave room for that in both (EXTRA). AHEAD chunks are in flight besides the current one.
template <class Scalar, class Config, int COLUMN_PITCH = Config::M, int EXTRA = 0>
struct Chunk {
  static constexpr int M = Config::M, N = Config::N, G = Config::G, THREADS = Config::THREADS, AHEAD = Config::AHEAD;
  static constexpr int SIZE = sizeof(Scalar), V = 16 / SIZE, RUN = G * M * N;
  static constexpr int VECTORS = RUN / V, X_VECTORS = VECTORS + EXTRA;
  static constexpr bool PLAIN = Config::PLAIN != 0, HAS_Y = Config::HAS_Y != 0;
  static constexpr bool SWAPPED = Config::SWAPPED != 0;  // the transposed operand is the second addend
  using Vector = matmill::Vector<Scalar, V>;
  using Acc = typename Vector::Acc;
  static_assert(RUN % V == 0, "a chunk must be a whole number of vectors");
  static_assert(COLUMN_PITCH == M || G == 1, "only a chunk of one matrix has padded columns");

  // COUNT vectors distributed over the threads.
  template <int COUNT>
  struct Slots {
    static constexpr int SLOTS = (COUNT + THREADS - 1) / THREADS;
    static __device__ __forceinline__ int vector(int s) { return threadIdx.x + s * THREADS; }
    static __device__ __forceinline__ bool present(int s) { return (s + 1) * THREADS <= COUNT || vector(s) < COUNT; }
  };
  using XSlots = Slots<X_VECTORS>;
  using DSlots = Slots<VECTORS>;

  // Bank padding: PAD_VECTORS unused vectors follow every PAD_EVERY vectors of X. The host picks both for M and N, so that a warp's
  // gather has few bank conflicts.
  static constexpr int PAD_EVERY = Config::PAD_EVERY, PAD_VECTORS = Config::PAD_VECTORS;
  static constexpr int X_BYTES = (X_VECTORS + (X_VECTORS - 1) / PAD_EVERY * PAD_VECTORS) * 16;
  // Bytes of one chunk in shared memory. Y is staged there where registers would hold the Y of several chunks.
  static constexpr bool Y_STAGED = HAS_Y && AHEAD > 1;
  static constexpr int BUFFER_BYTES = X_BYTES + (Y_STAGED ? VECTORS * 16 : 0);
  static_assert((1 + AHEAD) * BUFFER_BYTES == Config::SHARED_BYTES, "host and device must agree");

  // The byte offset of an element of X.
  static __device__ __forceinline__ constexpr int byte_offset(int element) {
    return element * SIZE + element / (V * PAD_EVERY) * (PAD_VECTORS * 16);
  }

  // The shared-memory addresses of the elements of X for one vector of D, which begins at element `at` of the chunk.
  struct Gather {
    // STEADY: one address per vector is enough, as the elements of every vector are at the same distances. No vector
    // spans two matrices, all span rows at the same elements, if at all, and have the same bank padding between their
    // elements.
    static constexpr int COLUMNS = N < V ? N : V, COLUMNS_PER_GAP = PAD_EVERY * V / M > 0 ? PAD_EVERY * V / M : 1;
    static constexpr bool SAME_SHAPE = N % V == 0 || (V % N == 0 && M % (V / N) == 0);
    static constexpr bool SAME_GAPS =
        PAD_EVERY * V % (COLUMNS * M) == 0 || (M % V == 0 && PAD_EVERY * V % M == 0 && COLUMNS % COLUMNS_PER_GAP == 0);
    static constexpr bool STEADY = SAME_SHAPE && COLUMN_PITCH == M && (PAD_VECTORS == 0 || (SAME_GAPS && EXTRA == 0));
    static_assert(STEADY == (Config::STEADY != 0), "host and device must agree");
    unsigned addresses[STEADY ? 1 : V];  // in shared memory

    // X's misalignment moves the element of row r and column c by shift(r, c) elements.
    template <class Shift>
    __device__ __forceinline__ void locate(const unsigned char* shared, int at, Shift shift) {
      const unsigned first = static_cast<unsigned>(__cvta_generic_to_shared(shared));
      int row = at % (M * N) / N, column = at % N, element = at / (M * N) * (M * N) + column * COLUMN_PITCH + row;
      addresses[0] = first + byte_offset(element + shift(row, column));
      if constexpr (!STEADY) {
#pragma unroll
        for (int i = 1; i < V; ++i) {
          element += COLUMN_PITCH;
          if (++column == N) {
            column = 0;
            element -= N * COLUMN_PITCH - 1;
            if (++row == M) {
              row = 0;
              element += M * N - M;
            }
          }
          addresses[i] = first + byte_offset(element + shift(row, column));
        }
        // Pins the addresses in registers: the compiler would keep distances instead and add them up every time.
#pragma unroll
        for (int i = 0; i < V; ++i) asm volatile("" : "+r"(addresses[i]));
      }
    }
    // Gathers the vector from the buffer at this offset.
    __device__ __forceinline__ Vector gathered(unsigned buffer) const {
      return Vector::gathered([&](int i) {
        const unsigned from =
            STEADY ? addresses[0] + byte_offset(i % N * COLUMN_PITCH + i / N) : addresses[STEADY ? 0 : i];
        return *static_cast<const Scalar*>(__cvta_shared_to_generic(from + buffer));
      });
    }
  };

  // Loads a vector, WIDTH elements at a time; only elements begin to end - 1 exist.
  template <int WIDTH = V>
  static __device__ __forceinline__ Vector load_vector(const Scalar* from, int begin, int end, bool aligned) {
    Vector v;
    if (aligned && begin <= 0 && end >= V) {
      v.template load_by<WIDTH>(from);
    } else {
#pragma unroll 4
      for (int i = 0; i < V; ++i) v.push(i >= begin && i < end ? from[i] : Scalar{});
    }
    return v;
  }

  // Copies a vector of X or Y to its offset in a buffer. Elements that do not exist are not read.
  static __device__ __forceinline__ void copy_x_vector(unsigned char* buffer, int vector, const Scalar* from, int begin,
                                                       int end, bool aligned) {
    copy_vector(buffer + byte_offset(vector * V), from, begin, end, aligned);
  }
  static __device__ __forceinline__ void copy_y_vector(unsigned char* buffer, int vector, const Scalar* from, int begin,
                                                       int end, bool aligned) {
    copy_vector(buffer + X_BYTES + vector * 16, from, begin, end, aligned);
  }
  static __device__ __forceinline__ void copy_vector(unsigned char* to, const Scalar* from, int begin, int end,
                                                     bool aligned) {
    if (aligned && begin <= 0 && end >= V) {
      ptx::cp_async<16>(ptx::shared_address(to), from);
    } else {
#pragma unroll 1
      for (int i = 0; i < V; ++i) {
        reinterpret_cast<Scalar*>(to)[i] = i >= begin && i < end ? from[i] : Scalar{};
      }
    }
  }

  static __device__ __forceinline__ void store_vector(Scalar* to, Vector v, int begin, int end, bool aligned) {
    if (aligned && begin <= 0 && end >= V) {
      v.template store<true>(to);
    } else {
#pragma unroll 1
      for (int i = 0; i < V; ++i) {
        if (i >= begin && i < end) to[i] = v.first();
        v.push(Scalar{});
      }
    }
  }

  // Processes the block's chunks, interleaved with those of other blocks. `operands` knows their layout. copy_x(buffer,
  // c) copies the vectors of chunk c that XSlots assigns. fetch_y(y, c) loads the vectors that DSlots assigns; with
  // AHEAD > 1, copy_y(buffer, c) copies them instead. store(v, s, c) stores the vector of slot s; `shift` is as in
  // Gather. `shared` holds SHARED_BYTES, aligned to 16. Y and D may alias.
  template <class Operands>
  static __device__ __forceinline__ void run(unsigned char* shared, const Operands& operands, Index chunks, Acc alpha,
                                             Acc beta) {
    ptx::wait_then_trigger();
    if constexpr (AHEAD == 0) {
      run_single(shared, operands, alpha, beta);
    } else if constexpr (AHEAD == 1) {
      run_double_buffered(shared, operands, chunks, alpha, beta);
    } else {
      run_multistage(shared, operands, chunks, alpha, beta);
    }
  }

 private:
  // Computes the addresses in X of this thread's vectors of D.
  template <class Operands>
  static __device__ __forceinline__ void locate(Gather (&gathers)[DSlots::SLOTS], const unsigned char* shared,
                                                const Operands& operands) {
    const auto shift = [&](int row, int column) { return operands.shift(row, column); };
#pragma unroll
    for (int s = 0; s < DSlots::SLOTS; ++s) gathers[s].locate(shared, DSlots::vector(s) * V, shift);
  }

  // A vector of D from vectors of X and Y.
  static __device__ __forceinline__ Vector combined(Vector x, const Vector& y, Acc alpha, Acc beta) {
    if constexpr (HAS_Y) {
      x.template blend<SWAPPED>(alpha, beta, y);
    } else if constexpr (!PLAIN) {
      x.scale(alpha);
    }
    return x;
  }

  // One chunk per block.
  template <class Operands>
  static __device__ __forceinline__ void run_single(unsigned char* shared, const Operands& operands, Acc alpha,
                                                    Acc beta) {
    const Index chunk = blockIdx.x;
    Vector y[DSlots::SLOTS];
    operands.copy_x(shared, chunk);
    ptx::cp_async_commit();
    if constexpr (HAS_Y) operands.fetch_y(y, chunk);
    Gather gathers[DSlots::SLOTS];
    locate(gathers, shared, operands);
    ptx::cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < DSlots::SLOTS; ++s) {
      if (!DSlots::present(s)) continue;
      operands.store(combined(gathers[s].gathered(0), y[s], alpha, beta), s, chunk);
    }
  }

  // The next chunk is in flight.
  template <class Operands>
  static __device__ __forceinline__ void run_double_buffered(unsigned char* shared, const Operands& operands,
                                                             Index chunks, Acc alpha, Acc beta) {
    Vector y[DSlots::SLOTS];
    Index chunk = blockIdx.x;
    operands.copy_x(shared, chunk);
    ptx::cp_async_commit();
    if constexpr (HAS_Y) operands.fetch_y(y, chunk);
    Gather gathers[DSlots::SLOTS];
    locate(gathers, shared, operands);
    int half = 0;  // of shared memory, in bytes
#pragma unroll 1
    while (chunk < chunks) {
      const Index next = chunk + gridDim.x;
      ptx::cp_async_wait<0>();
      __syncthreads();
      // All threads have gathered from the other half: it is free.
      Vector in_flight[DSlots::SLOTS];
      if (next < chunks) {
        operands.copy_x(shared + (X_BYTES - half), next);
        if constexpr (HAS_Y) operands.fetch_y(in_flight, next);
      }
      ptx::cp_async_commit();

#pragma unroll
      for (int s = 0; s < DSlots::SLOTS; ++s) {
        if (!DSlots::present(s)) continue;
        operands.store(combined(gathers[s].gathered(half), y[s], alpha, beta), s, chunk);
      }
#pragma unroll
      for (int s = 0; s < DSlots::SLOTS; ++s) y[s] = in_flight[s];
      half = X_BYTES - half;
      chunk = next;
    }
  }

  // AHEAD chunks are in flight: each wait is for copies issued AHEAD chunks ago.
  template <class Operands>
  static __device__ __forceinline__ void run_multistage(unsigned char* shared, const Operands& operands, Index chunks,
                                                        Acc alpha, Acc beta) {
    Index chunk = blockIdx.x, next = chunk;
    unsigned free_buffer = 0;  // offset of the buffer for the next copy
    const auto copy = [&] {
      if (next < chunks) {
        operands.copy_x(shared + free_buffer, next);
        if constexpr (Y_STAGED) operands.copy_y(shared + free_buffer, next);
      }
      ptx::cp_async_commit();
      next += gridDim.x;
      free_buffer = next_buffer(free_buffer);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) copy();
    Gather gathers[DSlots::SLOTS];
    locate(gathers, shared, operands);
    unsigned buffer = 0;
#pragma unroll 1
    for (; chunk < chunks; chunk += gridDim.x) {
      ptx::cp_async_wait<AHEAD - 1>();
      __syncthreads();
      copy();  // into the buffer that all threads have gathered from
#pragma unroll
      for (int s = 0; s < DSlots::SLOTS; ++s) {
        if (!DSlots::present(s)) continue;
        Vector y;
        if constexpr (HAS_Y)
          y.load(reinterpret_cast<const Scalar*>(shared + buffer + X_BYTES + DSlots::vector(s) * 16));
        operands.store(combined(gathers[s].gathered(buffer), y, alpha, beta), s, chunk);
      }
      buffer = next_buffer(buffer);
    }
  }
  static __device__ __forceinline__ unsigned next_buffer(unsigned buffer) {
    return buffer == AHEAD * BUFFER_BYTES ? 0 : buffer + BUFFER_BYTES;
  }
};

}  // namespace matmill
