// D = alpha * X + beta * Y for many small packed matrices, X's transposed: whole runs of them are one block's work, a
// portion; see portion.cuh. All operands' portions are runs of the same elements of memory.
//
// An operand that does not start on 16 bytes goes element by element.
#include "matmill/transpose/chunk.cuh"

using matmill::Index;
using Portion = matmill::Portion<Scalar, Config>;
using Vector = Portion::Vector;

struct Operands {
  const Scalar *X, *Y;
  Scalar* D;
  Index total;
  bool x_aligned, y_aligned, d_aligned;

  __device__ __forceinline__ void copy_x(unsigned char* half, Index portion) const {
#pragma unroll
    for (int s = 0; s < Portion::Made::SLOTS; ++s) {
      if (!Portion::Made::present(s)) continue;
      Portion::copied(half, Portion::Made::vector(s), X + portion * Portion::RUN + at(s), 0, left(portion) - at(s),
                      x_aligned);
    }
  }
  __device__ __forceinline__ void fetch_y(Vector (&y)[Portion::Made::SLOTS], Index portion) const {
#pragma unroll
    for (int s = 0; s < Portion::Made::SLOTS; ++s) {
      if (!Portion::Made::present(s)) continue;
      y[s] = Portion::fetched(Y + portion * Portion::RUN + at(s), 0, left(portion) - at(s), y_aligned);
    }
  }
  __device__ __forceinline__ void store(const Vector& v, int s, Index portion) const {
    Portion::stored(D + portion * Portion::RUN + at(s), v, 0, left(portion) - at(s), d_aligned);
  }
  static __device__ __forceinline__ int moved(int, int) { return 0; }

 private:
  static __device__ __forceinline__ int at(int s) { return Portion::Made::vector(s) * Portion::V; }
  // How many elements there are, as far as a portion reaches.
  __device__ __forceinline__ int left(Index portion) const {
    const Index rest = total - portion * Portion::RUN;
    return int(rest < Portion::RUN ? rest : Portion::RUN);
  }
};

// Y and D may be the same memory.
extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM)
    transpose_small(const __grid_constant__ Args args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Operands operands{args.X,
                          args.Y,
                          args.D,
                          args.total,
                          matmill::on_vectors(args.X),
                          matmill::on_vectors(args.Y),
                          matmill::on_vectors(args.D)};
  Portion::make(shared, operands, (args.total + Portion::RUN - 1) / Portion::RUN, args.alpha, args.beta);
}
