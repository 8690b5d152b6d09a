// V elements in words that one instruction loads or stores.
#pragma once

#include "matmill/dtype/packed.cuh"

namespace matmill {

template <class Scalar, int V>
struct alignas(V * sizeof(Scalar)) Vector {
  static constexpr int SIZE = sizeof(Scalar);
  static constexpr int W = SIZE < 4 && V * SIZE >= 4 ? 4 / SIZE : 1, WORDS = V / W;  // elements per word; words
  using Packed = matmill::Packed<Scalar, W>;
  using Word = typename Packed::Word;
  using Acc = typename NumberOf<Scalar>::Acc;

  Word words[WORDS];

  __device__ __forceinline__ void load(const Scalar* from) { copy<WORDS>(words, reinterpret_cast<const Word*>(from)); }
  // The same, WIDTH elements per load; `from` is aligned to that.
  template <int WIDTH>
  __device__ __forceinline__ void load_by(const Scalar* from) {
    if constexpr (WIDTH == V) {
      load(from);
    } else {
#pragma unroll
      for (int i = 0; i < V; i += WIDTH) copy<WIDTH>(reinterpret_cast<Scalar*>(words) + i, from + i);
    }
  }
  // Stores to global memory, with ONE_INSTRUCTION as inline PTX. Where edges store the same first element, the compiler
  // would else split a pair of 8-byte elements into three stores, and may store any four words one by one. PTX ISA,
  // "Data Movement and Conversion Instructions: st".
  template <bool ONE_INSTRUCTION = SIZE == 8 && WORDS == 2>
  __device__ __forceinline__ void store(Scalar* to) const {
    if constexpr (ONE_INSTRUCTION && SIZE == 8) {
      asm volatile("st.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "l"(long_bits(words[0])),
                   "l"(long_bits(words[1]))
                   : "memory");
    } else if constexpr (ONE_INSTRUCTION && SIZE < 8) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                   "r"(word_bits(words[0])), "r"(word_bits(words[1])), "r"(word_bits(words[2])),
                   "r"(word_bits(words[3]))
                   : "memory");
    } else {
      copy<WORDS>(reinterpret_cast<Word*>(to), words);
    }
  }
  // Shifts every element down by one and puts `next` last. Loops of this, four loads at a time, assemble and take apart
  // vectors that extend beyond a matrix. Fully unrolled, they would be most of the code.
  __device__ __forceinline__ void push(Scalar next) {
#pragma unroll
    for (int j = 0; j < WORDS; ++j) {
      if constexpr (W == 1) {
        words[j] = j + 1 < WORDS ? words[(j + 1) % WORDS] : next;
      } else {
        const unsigned above = j + 1 < WORDS ? words[(j + 1) % WORDS] : bits(next);
        words[j] = __funnelshift_r(words[j], above, SIZE * 8);
      }
    }
  }
  // Element i, a compile-time constant.
  __device__ __forceinline__ Scalar element(int i) const {
    if constexpr (W == 1) {
      return words[i];
    } else {
      const typename matmill::Word<SIZE>::Type low = words[i / W] >> i % W * SIZE * 8;
      return *reinterpret_cast<const Scalar*>(&low);
    }
  }
  __device__ __forceinline__ Scalar first() const { return element(0); }
  // The vector of elements of(0), of(1), ...
  template <class Of>
  static __device__ __forceinline__ Vector gathered(Of of) {
    Vector v;
#pragma unroll
    for (int j = 0; j < WORDS; ++j) {
      if constexpr (W == 1) {
        v.words[j] = of(j);
      } else {
        unsigned elements[W];
#pragma unroll
        for (int w = 0; w < W; ++w) elements[w] = bits(of(j * W + w));
        v.words[j] = Packed::joined(elements);
      }
    }
    return v;
  }

  __device__ __forceinline__ void scale(Acc alpha) {
#pragma unroll
    for (int j = 0; j < WORDS; ++j) words[j] = Packed::scale(alpha, words[j]);
  }
  // alpha * this + beta * added. The product with beta is rounded before the addition; SWAPPED: the one with alpha.
  template <bool SWAPPED = false>
  __device__ __forceinline__ void blend(Acc alpha, Acc beta, const Vector& added) {
#pragma unroll
    for (int j = 0; j < WORDS; ++j) {
      words[j] = SWAPPED ? Packed::blended(beta, added.words[j], alpha, words[j])
                         : Packed::blended(alpha, words[j], beta, added.words[j]);
    }
  }

  static __device__ __forceinline__ unsigned bits(const Scalar& x) {
    return *reinterpret_cast<const typename matmill::Word<SIZE>::Type*>(&x);
  }

 private:
  static __device__ __forceinline__ unsigned word_bits(const Word& x) { return *reinterpret_cast<const unsigned*>(&x); }
  static __device__ __forceinline__ unsigned long long long_bits(const Scalar& x) {
    return *reinterpret_cast<const unsigned long long*>(&x);
  }
};

}  // namespace matmill
