// The pieces of a float32 element, as they are split and multiplied.
#pragma once

#include "matmill/dtype/half.cuh"
#include "matmill/ptx/mma.cuh"

namespace matmill {

constexpr float LOW_SCALE = 2048.0f;  // of the lower piece

// Elements of one kind of pieces, by its number (Config::PIECES).
template <int PIECES>
struct PieceOf;
template <>
struct PieceOf<1> {
  using Type = Half;
  static constexpr bool SCALED = true;  // rows of A and columns of B are divided by powers of two
  static constexpr unsigned TOO_SMALL = 1, TOO_LARGE = 0x7f800000u;  // sizes of elements that have no pieces, as bits
  static __device__ __forceinline__ Type rounded(float x) { return Half::rounded(x); }
  static __device__ __forceinline__ float widened(Type x) { return x.widened(); }
};
template <>
struct PieceOf<2> {
  using Type = float;  // of tf32
  static constexpr bool SCALED = false;
  // Smaller than 2^-126: such a number has fewer bits. Products of numbers below 2^54 are so small that 2^19 of them, and
  // twice as many in a chunk's sum of scaled lower pieces, cannot add up to infinity.
  static constexpr unsigned TOO_SMALL = 0x00800000u, TOO_LARGE = (54 + 127) << 23;
  static __device__ __forceinline__ Type rounded(float x) { return ptx::rounded_tf32(x); }
  static __device__ __forceinline__ float widened(Type x) { return x; }
};

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The workspace begins with the sizes of the smallest elements that each block of the launch that splits has seen, of A and
// then of B, as bits. Exponents of A and B follow.
constexpr int SIZES = 512;
constexpr unsigned NO_ELEMENT = 0x7f7fffffu;

// Whether pieces are as exact as FMA: whether the smallest elements of A and B are at most `deepest` times below 2^-14
// together. All lanes of a warp call it, and each warp reads all sizes: they need no shared memory.
__device__ __forceinline__ bool pieces_suffice(const void* workspace, float deepest) {
  constexpr int VECTORS = SIZES / (4 * 32);
  const uint4* const sizes = static_cast<const uint4*>(workspace) + threadIdx.x % 32;
  float depth = 1;
#pragma unroll
  for (int matrix = 0; matrix < 2; ++matrix) {
    unsigned smallest = NO_ELEMENT;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const uint4 four = sizes[(matrix * VECTORS + i) * 32];
      smallest = min(smallest, min(min(four.x, four.y), min(four.z, four.w)));
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) smallest = min(smallest, __shfl_xor_sync(0xffffffffu, smallest, lane));
    depth *= fmaxf(1, 0x1p-14f / __uint_as_float(smallest));
  }
  return depth <= deepest;
}

}  // namespace matmill
