// D = alpha * X + beta * Y for many small packed matrices, X's transposed: whole runs of them are one block's work.
//
//   X ── 16-byte loads of G matrices, one run of memory ──▶ shared [G N][M + 1 or M] ──┐ barrier
//   Y ── 16-byte loads of the same run ──▶ registers ──────────────────────────────────┴─▶ 16-byte stores of D's run
//
// M and N are compiled in, so that what element of which matrix a place in the run belongs to costs no division. The
// pitch in shared memory is odd. Where an operand does not start on 16 bytes, all go element by element.
#include "matmill/dtype/number.cuh"
#include "matmill/word.cuh"

using Index = long long;
using Number = matmill::NumberOf<Scalar>;
using Acc = Number::Acc;

constexpr int M = Config::M, N = Config::N, G = Config::G, THREADS = Config::THREADS;
constexpr int V = 16 / sizeof(Scalar), PITCH = M | 1, RUN = G * M * N;
constexpr int SLOTS = (RUN / V + THREADS - 1) / THREADS;
static_assert(RUN % V == 0, "a run is a whole number of vectors");
static_assert((G * N * PITCH * sizeof(Scalar) + 15) / 16 * 16 == Config::SHARED_BYTES, "host and device must agree");

struct alignas(16) Vector {
  Scalar x[V];
};

// V elements from place `at` of a run on, of which `left` are there.
__device__ __forceinline__ void fetch(Vector& to, const Scalar* from, int left, bool whole) {
  if (whole && left >= V) {
    matmill::copy<V>(to.x, from);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < left) to.x[i] = from[i];
  }
}

// An element of D. A template, because bits that are merely moved have no sum to compile.
template <class T, bool PLAIN, bool HAS_Y>
__device__ __forceinline__ T made(T x, const T& y, typename matmill::NumberOf<T>::Acc alpha,
                                  typename matmill::NumberOf<T>::Acc beta) {
  using Wide = matmill::NumberOf<T>;
  if constexpr (PLAIN) {
    return x;
  } else if constexpr (HAS_Y) {
    return Wide::down(matmill::blend(alpha, Wide::up(x), beta, Wide::up(y)));
  } else {
    return Wide::down(alpha * Wide::up(x));
  }
}

// grid.x: runs. `total` is the number of all elements. Y and D may be the same memory.
extern "C" __global__ void __launch_bounds__(THREADS, Config::BLOCKS_PER_SM)
    transpose_small(const Scalar* X, const Scalar* Y, Scalar* D, Index total, Acc alpha, Acc beta) {
  extern __shared__ __align__(16) unsigned char bytes[];
  Scalar* const shared = reinterpret_cast<Scalar*>(bytes);
  const Index first = Index(blockIdx.x) * RUN;
  const int count = int(total - first < RUN ? total - first : RUN);
  X += first;
  D += first;
  if constexpr (Config::HAS_Y) Y += first;
  const unsigned long long starts = reinterpret_cast<unsigned long long>(X) | reinterpret_cast<unsigned long long>(D) |
                                    (Config::HAS_Y ? reinterpret_cast<unsigned long long>(Y) : 0);
  const bool whole = starts % 16 == 0;

  Vector x[SLOTS], y[SLOTS];
#pragma unroll
  for (int s = 0; s < SLOTS; ++s) {
    const int at = (threadIdx.x + s * THREADS) * V;
    fetch(x[s], X + at, count - at, whole);
    if constexpr (Config::HAS_Y) fetch(y[s], Y + at, count - at, whole);
  }
#pragma unroll
  for (int s = 0; s < SLOTS; ++s) {
    const int at = (threadIdx.x + s * THREADS) * V;
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (at + i < count) shared[(at + i) / M * PITCH + (at + i) % M] = x[s].x[i];
  }
  __syncthreads();

#pragma unroll
  for (int s = 0; s < SLOTS; ++s) {
    const int at = (threadIdx.x + s * THREADS) * V;
    const auto element = [&](int i) {
      const int place = at + i, matrix = place / (M * N), row = place % (M * N) / N, column = place % N;
      const Scalar turned = shared[(matrix * N + column) * PITCH + row];
      return made<Scalar, Config::PLAIN != 0, Config::HAS_Y != 0>(turned, y[s].x[i], alpha, beta);
    };
    if (whole && at + V <= count) {
      Vector out;
#pragma unroll
      for (int i = 0; i < V; ++i) out.x[i] = element(i);
      matmill::copy<V>(D + at, out.x);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (at + i < count) D[at + i] = element(i);
    }
  }
}
