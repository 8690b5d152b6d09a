// D = alpha * X + beta * Y for many small packed matrices, X's transposed: whole runs of them are one block's work.
//
//   X ── 16-byte loads of G matrices, one run of memory ──▶ 16-byte stores to shared memory ──┐ barrier
//   Y ── 16-byte loads of the same run ──▶ registers ──▶ alpha * X gathered + beta * Y ◀──────┘
//                                                            └─▶ 16-byte stores of D's run
//
// There are as many blocks as run at the same time, each of which does many runs. A thread makes the same SLOTS vectors
// of D of every run, so that where their elements lie in X is worked out once. The next run's vectors are under way
// while one is gathered, and go to the other half of shared memory: one barrier a run.
//
// M and N are compiled in. Where vectors of D begin at the same places of rows, all elements of one lie at constant
// distances in X. An operand that does not start on 16 bytes goes element by element.
#include "matmill/geam/vector.cuh"

using Index = long long;
using Acc = matmill::NumberOf<Scalar>::Acc;

constexpr int M = Config::M, N = Config::N, G = Config::G, THREADS = Config::THREADS;
constexpr int SIZE = sizeof(Scalar), V = 16 / SIZE, RUN = G * M * N, VECTORS = RUN / V;
constexpr int SLOTS = (VECTORS + THREADS - 1) / THREADS;
constexpr bool PLAIN = Config::PLAIN != 0, HAS_Y = Config::HAS_Y != 0;
using Vector = matmill::Vector<Scalar, V>;

// X's run lies in shared memory as in global memory, but that behind every EVERY vectors GAP others are left out. With
// the gaps that suit M and N, what a warp gathers lies in different banks.
constexpr int EVERY = Config::EVERY, GAP = Config::GAP, SHEET = (VECTORS + (VECTORS - 1) / EVERY * GAP) * 16;
static_assert(RUN % V == 0, "a run is a whole number of vectors");
static_assert(2 * SHEET == Config::SHARED_BYTES, "host and device must agree");

// The byte at which element `place` of X's run lies.
__device__ __forceinline__ constexpr int byte_of(int place) {
  return place * SIZE + place / (V * EVERY) * (GAP * 16);
}

// Where the elements of one vector of D lie, which begins at element `at` of the run.
struct Places {
  // No vector crosses from one matrix to another, and all of them cross rows at the same places, if at any; and as many
  // gaps are between the elements of each.
  static constexpr int COLUMNS = N < V ? N : V, LINES = EVERY * V / M;
  static constexpr bool STEADY =
      (N % V == 0 || (V % N == 0 && M % (V / N) == 0)) &&
      (EVERY * V % (COLUMNS * M) == 0 || (M % V == 0 && EVERY * V % M == 0 && COLUMNS % (LINES > 0 ? LINES : 1) == 0));
  static_assert(STEADY == (Config::STEADY != 0), "host and device must agree");
  unsigned addresses[STEADY ? 1 : V];  // in shared memory

  __device__ __forceinline__ void find(const unsigned char* shared, int at) {
    const unsigned first = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    int row = at % (M * N) / N, column = at % N, place = at / (M * N) * (M * N) + column * M + row;
    addresses[0] = first + byte_of(place);
    if constexpr (!STEADY) {
#pragma unroll
      for (int i = 1; i < V; ++i) {
        place += M;
        if (++column == N) {
          column = 0;
          place -= M * N - 1;
          if (++row == M) {
            row = 0;
            place += M * N - M;
          }
        }
        addresses[i] = first + byte_of(place);
      }
      // Kept as they are: the compiler would rather keep the distances, and add them up one by one for every run.
#pragma unroll
      for (int i = 0; i < V; ++i) asm volatile("" : "+r"(addresses[i]));
    }
  }
  // From `half` bytes behind.
  __device__ __forceinline__ Vector gathered(unsigned half) const {
    return Vector::gathered([&](int i) {
      const unsigned from = STEADY ? addresses[0] + byte_of(i % N * M + i / N) : addresses[STEADY ? 0 : i];
      return *static_cast<const Scalar*>(__cvta_shared_to_generic(from + half));
    });
  }
};

// V elements from `from` on, of which `left` are there.
__device__ __forceinline__ Vector fetched(const Scalar* from, int left, bool aligned) {
  Vector v;
  if (aligned && left >= V) {
    v.load(from);
  } else {
#pragma unroll 4
    for (int i = 0; i < V; ++i) v.push(i < left ? from[i] : Scalar{});
  }
  return v;
}

__device__ __forceinline__ bool is_aligned(const Scalar* start) {
  return reinterpret_cast<unsigned long long>(start) % 16 == 0;
}

// `total` is the number of all elements. Blocks take runs in turns. Y and D may be the same memory.
extern "C" __global__ void __launch_bounds__(THREADS, Config::BLOCKS_PER_SM)
    transpose_small(const Scalar* X, const Scalar* Y, Scalar* D, Index total, Acc alpha, Acc beta) {
  extern __shared__ __align__(16) unsigned char shared[];
  const bool x_aligned = is_aligned(X), y_aligned = is_aligned(Y), d_aligned = is_aligned(D);
  const auto at = [](int s) { return int(threadIdx.x + s * THREADS) * V; };
  const auto present = [](int s) { return (s + 1) * THREADS <= VECTORS || threadIdx.x + s * THREADS < VECTORS; };
  // How many of the elements from `first` on there are, as far as a run reaches.
  const auto rest = [&](Index first) { return int(total - first < RUN ? total - first : RUN); };

  Vector x[SLOTS], y[SLOTS];
  const auto fetch = [&](Vector (&to)[SLOTS], const Scalar* from, Index first, bool aligned) {
    const int count = rest(first);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s)
      if (present(s)) to[s] = fetched(from + first + at(s), count - at(s), aligned);
  };

  Index first = Index(blockIdx.x) * RUN;
  fetch(x, X, first, x_aligned);
  if constexpr (HAS_Y) fetch(y, Y, first, y_aligned);
  Places places[SLOTS];
#pragma unroll
  for (int s = 0; s < SLOTS; ++s) places[s].find(shared, at(s));
  int half = 0;  // of shared memory
#pragma unroll 1
  while (first < total) {
    const Index next = first + Index(gridDim.x) * RUN;
#pragma unroll
    for (int s = 0; s < SLOTS; ++s)
      if (present(s)) *reinterpret_cast<Vector*>(shared + (half + byte_of(at(s)))) = x[s];
    if (next < total) fetch(x, X, next, x_aligned);
    __syncthreads();

    const int count = rest(first);
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const int left = count - at(s);
      if (!present(s) || left <= 0) continue;
      Vector out = places[s].gathered(half);
      if constexpr (HAS_Y) {
        out.blend(alpha, beta, y[s]);
      } else if constexpr (!PLAIN) {
        out.scale(alpha);
      }
      Scalar* const to = D + first + at(s);
      if (d_aligned && left >= V) {
        out.store(to);
      } else {
#pragma unroll 1
        for (int i = 0; i < min(V, left); ++i) {
          to[i] = out.first();
          out.push(Scalar{});
        }
      }
    }
    if (HAS_Y && next < total) fetch(y, Y, next, y_aligned);
    half = SHEET - half;
    first = next;
  }
}
