// D = alpha * X + beta * Y for many small packed matrices, X transposed. A chunk is a run of whole matrices; see
// transpose/chunk.cuh. A chunk is the same run of elements in all operands.
//
// An operand that does not start on 16 bytes is accessed element by element.
#include "kernels/transpose/chunk.cuh"

using matmill::Index;
using Chunk = matmill::Chunk<Scalar, Config>;
using Vector = Chunk::Vector;

struct Operands {
  const Scalar *X, *Y;
  Scalar* D;
  Index total;
  bool x_aligned, y_aligned, d_aligned;

  __device__ __forceinline__ void copy_x(unsigned char* buffer, Index chunk) const {
#pragma unroll
    for (int s = 0; s < Chunk::DSlots::SLOTS; ++s) {
      if (!Chunk::DSlots::present(s)) continue;
      Chunk::copy_x_vector(buffer, Chunk::DSlots::vector(s), X + chunk * Chunk::RUN + at(s), 0, left(chunk) - at(s),
                           x_aligned);
    }
  }
  __device__ __forceinline__ void fetch_y(Vector (&y)[Chunk::DSlots::SLOTS], Index chunk) const {
#pragma unroll
    for (int s = 0; s < Chunk::DSlots::SLOTS; ++s) {
      if (!Chunk::DSlots::present(s)) continue;
      y[s] = Chunk::load_vector(Y + chunk * Chunk::RUN + at(s), 0, left(chunk) - at(s), y_aligned);
    }
  }
  __device__ __forceinline__ void store(const Vector& v, int s, Index chunk) const {
    Chunk::store_vector(D + chunk * Chunk::RUN + at(s), v, 0, left(chunk) - at(s), d_aligned);
  }
  static __device__ __forceinline__ int shift(int, int) { return 0; }

 private:
  static __device__ __forceinline__ int at(int s) { return Chunk::DSlots::vector(s) * Chunk::V; }
  // Elements of a chunk that exist.
  __device__ __forceinline__ int left(Index chunk) const {
    const Index rest = total - chunk * Chunk::RUN;
    return int(rest < Chunk::RUN ? rest : Chunk::RUN);
  }
};

// Y and D may alias.
extern "C" __global__ void __launch_bounds__(Config::THREADS, Config::BLOCKS_PER_SM) transpose_small(PARAMETERS) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Operands operands{X, Y, D, total, matmill::on_vectors(X), matmill::on_vectors(Y), matmill::on_vectors(D)};
  Chunk::run(shared, operands, (total + Chunk::RUN - 1) / Chunk::RUN, alpha, beta);
}
