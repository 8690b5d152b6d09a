// Transposed sums of which a block makes a portion, or one after another, X turned on the way from shared memory to
// registers.
//
//   X ── 16-byte copies of a portion to shared memory, as it lies ──▶ barrier ──┐
//   Y ── loads of D's vectors ──▶ registers ──▶ alpha * X gathered + beta * Y ◀───┘
//                                                   └─▶ 16-byte stores of D
//
// With none AHEAD a block has one portion, and where one ends another begins. Else there are as many blocks as run at the
// same time. A thread then makes the same SLOTS vectors of D of every portion, so that where their elements lie in X is
// worked out once. The next portion's vectors are under way while one is gathered: X's to the other half of shared memory,
// so that there is one barrier a portion, and Y's to registers that X's need no more. With more portions AHEAD, both are
// copied to shared memory, each portion to a part of its own.
//
// A portion is G matrices of M x N elements of D, whose vectors are numbered along rows, then down, then matrix by
// matrix; M, N and G are compiled in. How the operands lie in global memory is the kernel's business.
#pragma once

#include "matmill/transpose/vector.cuh"
#include "matmill/ptx/cp_async.cuh"
#include "matmill/ptx/order.cuh"

namespace matmill {

using Index = long long;

__device__ __forceinline__ bool on_vectors(const void* start) {
  return reinterpret_cast<unsigned long long>(start) % 16 == 0;
}

// X's elements lie in shared memory column by column, LINE from one column of D to the next, and take HELD vectors in
// all. A kernel whose X starts inside a vector leaves room for that in either. AHEAD portions are under way besides the
// one that is made.
template <class Scalar, class Config, int LINE = Config::M, int MORE = 0>
struct Portion {
  static constexpr int M = Config::M, N = Config::N, G = Config::G, THREADS = Config::THREADS, AHEAD = Config::AHEAD;
  static constexpr int SIZE = sizeof(Scalar), V = 16 / SIZE, RUN = G * M * N, VECTORS = RUN / V, HELD = VECTORS + MORE;
  static constexpr bool PLAIN = Config::PLAIN != 0, HAS_Y = Config::HAS_Y != 0;
  static constexpr bool SWAPPED = Config::SWAPPED != 0;  // what is turned is the sum's second operand
  using Vector = matmill::Vector<Scalar, V>;
  using Acc = typename Vector::Acc;
  static_assert(RUN % V == 0, "a portion is a whole number of vectors");
  static_assert(LINE == M || G == 1, "room between columns is left within one matrix alone");

  // `COUNT` vectors dealt to threads.
  template <int COUNT>
  struct Dealt {
    static constexpr int SLOTS = (COUNT + THREADS - 1) / THREADS;
    static __device__ __forceinline__ int vector(int s) { return threadIdx.x + s * THREADS; }
    static __device__ __forceinline__ bool present(int s) { return (s + 1) * THREADS <= COUNT || vector(s) < COUNT; }
  };
  using Given = Dealt<HELD>;
  using Made = Dealt<VECTORS>;

  // Behind every EVERY vectors of X, GAP others are left out. With the gaps that suit M and N, what a warp gathers lies
  // in different banks.
  static constexpr int EVERY = Config::EVERY, GAP = Config::GAP, SHEET = (HELD + (HELD - 1) / EVERY * GAP) * 16;
  // Bytes of a portion in shared memory. Y's vectors are there where registers would have to hold those of two portions.
  static constexpr bool PARKED = HAS_Y && AHEAD > 1;
  static constexpr int PART = SHEET + (PARKED ? VECTORS * 16 : 0);
  static_assert((1 + AHEAD) * PART == Config::SHARED_BYTES, "host and device must agree");

  // The byte at which element `place` of X lies.
  static __device__ __forceinline__ constexpr int byte_of(int place) {
    return place * SIZE + place / (V * EVERY) * (GAP * 16);
  }

  // Where the elements of one vector of D lie, which begins at element `at` of the portion.
  struct Places {
    // No vector crosses from one matrix to another, and all of them cross rows at the same places, if at any; and as
    // many gaps are between the elements of each.
    static constexpr int COLUMNS = N < V ? N : V, LINES = EVERY * V / M > 0 ? EVERY * V / M : 1;
    static constexpr bool ALIKE = N % V == 0 || (V % N == 0 && M % (V / N) == 0);
    static constexpr bool WHOLE =
        EVERY * V % (COLUMNS * M) == 0 || (M % V == 0 && EVERY * V % M == 0 && COLUMNS % LINES == 0);
    static constexpr bool STEADY = ALIKE && LINE == M && (GAP == 0 || (WHOLE && MORE == 0));
    static_assert(STEADY == (Config::STEADY != 0), "host and device must agree");
    unsigned addresses[STEADY ? 1 : V];  // in shared memory

    // The element of row r and column c lies `moved(r, c)` elements further behind than it would without room.
    template <class Moved>
    __device__ __forceinline__ void find(const unsigned char* shared, int at, Moved moved) {
      const unsigned first = static_cast<unsigned>(__cvta_generic_to_shared(shared));
      int row = at % (M * N) / N, column = at % N, place = at / (M * N) * (M * N) + column * LINE + row;
      addresses[0] = first + byte_of(place + moved(row, column));
      if constexpr (!STEADY) {
#pragma unroll
        for (int i = 1; i < V; ++i) {
          place += LINE;
          if (++column == N) {
            column = 0;
            place -= N * LINE - 1;
            if (++row == M) {
              row = 0;
              place += M * N - M;
            }
          }
          addresses[i] = first + byte_of(place + moved(row, column));
        }
        // Kept as they are: the compiler would rather keep the distances, and add them up one by one every time.
#pragma unroll
        for (int i = 0; i < V; ++i) asm volatile("" : "+r"(addresses[i]));
      }
    }
    // From `half` bytes behind.
    __device__ __forceinline__ Vector gathered(unsigned half) const {
      return Vector::gathered([&](int i) {
        const unsigned from = STEADY ? addresses[0] + byte_of(i % N * LINE + i / N) : addresses[STEADY ? 0 : i];
        return *static_cast<const Scalar*>(__cvta_shared_to_generic(from + half));
      });
    }
  };

  // A vector of elements from `from` on, WIDTH at a time, of which those from `begin` to `end` exist.
  template <int WIDTH = V>
  static __device__ __forceinline__ Vector fetched(const Scalar* from, int begin, int end, bool aligned) {
    Vector v;
    if (aligned && begin <= 0 && end >= V) {
      v.template load_by<WIDTH>(from);
    } else {
#pragma unroll 4
      for (int i = 0; i < V; ++i) v.push(i >= begin && i < end ? from[i] : Scalar{});
    }
    return v;
  }

  // Copies a vector of X, or of Y, to its place in a part of shared memory, as above; what does not exist is not touched.
  static __device__ __forceinline__ void copied(unsigned char* part, int vector, const Scalar* from, int begin, int end,
                                                bool aligned) {
    copied_to(part + byte_of(vector * V), from, begin, end, aligned);
  }
  static __device__ __forceinline__ void parked(unsigned char* part, int vector, const Scalar* from, int begin, int end,
                                                bool aligned) {
    copied_to(part + SHEET + vector * 16, from, begin, end, aligned);
  }
  static __device__ __forceinline__ void copied_to(unsigned char* to, const Scalar* from, int begin, int end,
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

  static __device__ __forceinline__ void stored(Scalar* to, Vector v, int begin, int end, bool aligned) {
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

  // Makes portions in turns with the other blocks. `operands` say how they lie: `copy_x(part, p)` copies the vectors of
  // portion p that Given deals, `fetch_y(y, p)` loads those of Made, of which `store(v, s, p)` stores the one of slot s;
  // `copy_y(part, p)`, where several portions are ahead, copies them instead; `moved` is as in Places. `shared` holds
  // SHARED_BYTES, aligned to 16. Y and D may be the same memory.
  template <class Operands>
  static __device__ __forceinline__ void make(unsigned char* shared, const Operands& operands, Index portions,
                                              Acc alpha, Acc beta) {
    ptx::begin();
    if constexpr (AHEAD == 0) {
      make_one(shared, operands, alpha, beta);
    } else if constexpr (AHEAD == 1) {
      make_next(shared, operands, portions, alpha, beta);
    } else {
      make_ahead(shared, operands, portions, alpha, beta);
    }
  }

 private:
  // Where in X the elements of this thread's vectors of D lie.
  template <class Operands>
  static __device__ __forceinline__ void find(Places (&places)[Made::SLOTS], const unsigned char* shared,
                                              const Operands& operands) {
    const auto moved = [&](int row, int column) { return operands.moved(row, column); };
#pragma unroll
    for (int s = 0; s < Made::SLOTS; ++s) places[s].find(shared, Made::vector(s) * V, moved);
  }

  // A vector of D, of those of X and Y.
  static __device__ __forceinline__ Vector made(Vector x, const Vector& y, Acc alpha, Acc beta) {
    if constexpr (HAS_Y) {
      x.template blend<SWAPPED>(alpha, beta, y);
    } else if constexpr (!PLAIN) {
      x.scale(alpha);
    }
    return x;
  }

  // The block's only portion.
  template <class Operands>
  static __device__ __forceinline__ void make_one(unsigned char* shared, const Operands& operands, Acc alpha,
                                                  Acc beta) {
    const Index portion = blockIdx.x;
    Vector y[Made::SLOTS];
    operands.copy_x(shared, portion);
    ptx::cp_async_commit();
    if constexpr (HAS_Y) operands.fetch_y(y, portion);
    Places places[Made::SLOTS];
    find(places, shared, operands);
    ptx::cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < Made::SLOTS; ++s) {
      if (!Made::present(s)) continue;
      operands.store(made(places[s].gathered(0), y[s], alpha, beta), s, portion);
    }
  }

  // With the next portion under way.
  template <class Operands>
  static __device__ __forceinline__ void make_next(unsigned char* shared, const Operands& operands, Index portions,
                                                   Acc alpha, Acc beta) {
    Vector y[Made::SLOTS];
    Index portion = blockIdx.x;
    operands.copy_x(shared, portion);
    ptx::cp_async_commit();
    if constexpr (HAS_Y) operands.fetch_y(y, portion);
    Places places[Made::SLOTS];
    find(places, shared, operands);
    int half = 0;  // of shared memory
#pragma unroll 1
    while (portion < portions) {
      const Index next = portion + gridDim.x;
      ptx::cp_async_wait<0>();
      __syncthreads();
      // The other half is free now: all threads have gathered from it.
      Vector under_way[Made::SLOTS];
      if (next < portions) {
        operands.copy_x(shared + (SHEET - half), next);
        if constexpr (HAS_Y) operands.fetch_y(under_way, next);
      }
      ptx::cp_async_commit();

#pragma unroll
      for (int s = 0; s < Made::SLOTS; ++s) {
        if (!Made::present(s)) continue;
        operands.store(made(places[s].gathered(half), y[s], alpha, beta), s, portion);
      }
#pragma unroll
      for (int s = 0; s < Made::SLOTS; ++s) y[s] = under_way[s];
      half = SHEET - half;
      portion = next;
    }
  }

  // With AHEAD portions under way. What is waited for was asked for so many portions ago.
  template <class Operands>
  static __device__ __forceinline__ void make_ahead(unsigned char* shared, const Operands& operands, Index portions,
                                                    Acc alpha, Acc beta) {
    Index portion = blockIdx.x, coming = portion;
    unsigned free = 0;  // where the part is that the portion coming next goes to
    const auto copy = [&] {
      if (coming < portions) {
        operands.copy_x(shared + free, coming);
        if constexpr (PARKED) operands.copy_y(shared + free, coming);
      }
      ptx::cp_async_commit();
      coming += gridDim.x;
      free = following(free);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) copy();
    Places places[Made::SLOTS];
    find(places, shared, operands);
    unsigned part = 0;
#pragma unroll 1
    for (; portion < portions; portion += gridDim.x) {
      ptx::cp_async_wait<AHEAD - 1>();
      __syncthreads();
      copy();  // to the part that all threads have gathered from
#pragma unroll
      for (int s = 0; s < Made::SLOTS; ++s) {
        if (!Made::present(s)) continue;
        Vector y;
        if constexpr (HAS_Y) y.load(reinterpret_cast<const Scalar*>(shared + part + SHEET + Made::vector(s) * 16));
        operands.store(made(places[s].gathered(part), y, alpha, beta), s, portion);
      }
      part = following(part);
    }
  }
  static __device__ __forceinline__ unsigned following(unsigned part) { return part == AHEAD * PART ? 0 : part + PART; }
};

}  // namespace matmill
