// W elements in one word, and alpha * x + beta * y on all of them: 16-bit elements in pairs, bytes in fours.
#pragma once

#include "matmill/dtype/number.cuh"
#include "matmill/dtype/word.cuh"

namespace matmill {

// One element is its own word.
template <class T, int W>
struct Packed {
  static_assert(W == 1, "only elements of 1 or 2 bytes are packed");
  using Word = T;
  using Number = NumberOf<T>;
  using Acc = typename Number::Acc;

  static __device__ __forceinline__ Word scale(Acc alpha, Word x) { return Number::down(alpha * Number::up(x)); }
  static __device__ __forceinline__ Word blended(Acc alpha, Word x, Acc beta, Word y) {
    return Number::down(blend(alpha, Number::up(x), beta, Number::up(y)));
  }

  // Transposes W x W elements: columns in, rows out.
  static __device__ __forceinline__ void transpose(Word (&rows)[1], const Word (&columns)[1]) { rows[0] = columns[0]; }
};

struct Pairs {
  using Word = unsigned;

  // Packs the low bits of each x into one word.
  static __device__ __forceinline__ Word joined(const unsigned (&x)[2]) { return __byte_perm(x[0], x[1], 0x5410); }
  static __device__ __forceinline__ void transpose(Word (&rows)[2], const Word (&columns)[2]) {
    rows[0] = __byte_perm(columns[0], columns[1], 0x5410);
    rows[1] = __byte_perm(columns[0], columns[1], 0x7632);
  }
};

template <class T>
struct Packed<T, 2> : Pairs {
  static __device__ __forceinline__ unsigned pair(float lower, float upper) {
    return T::rounded(lower).bits | unsigned(T::rounded(upper).bits) << 16;
  }
  static __device__ __forceinline__ Word scale(float alpha, Word x) {
    return pair(alpha * T::lower(x), alpha * T::upper(x));
  }
  static __device__ __forceinline__ Word blended(float alpha, Word x, float beta, Word y) {
    return pair(blend(alpha, T::lower(x), beta, T::lower(y)), blend(alpha, T::upper(x), beta, T::upper(y)));
  }
};

// Raw 16-bit words: alpha is 0 or 1.
template <>
struct Packed<short, 2> : Pairs {
  static __device__ __forceinline__ Word scale(short alpha, Word x) {
    return unsigned(static_cast<unsigned short>(x * alpha)) | (x >> 16) * unsigned(alpha) << 16;
  }
};

// A product of two bytes has 16 bits: two of them fit in a word without a carry between them, and so does a product
// plus a byte.
template <>
struct Packed<signed char, 4> {
  using Word = unsigned;

  static __device__ __forceinline__ unsigned even(unsigned x) { return x & 0x00ff00ffu; }
  static __device__ __forceinline__ unsigned odd(unsigned x) { return __byte_perm(x, 0, 0x4341); }
  static __device__ __forceinline__ unsigned mixed(unsigned even, unsigned odd) {
    return __byte_perm(even, odd, 0x6240);
  }
  static __device__ __forceinline__ Word scale(unsigned alpha, Word x) {
    alpha &= 0xff;
    return mixed(even(x) * alpha, odd(x) * alpha);
  }
  static __device__ __forceinline__ Word blended(unsigned alpha, Word x, unsigned beta, Word y) {
    alpha &= 0xff;
    beta &= 0xff;
    return mixed(even(even(x) * alpha) + even(y) * beta, even(odd(x) * alpha) + odd(y) * beta);
  }
  static __device__ __forceinline__ Word joined(const unsigned (&x)[4]) {
    return __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
  }
  static __device__ __forceinline__ void transpose(Word (&rows)[4], const Word (&columns)[4]) {
    const unsigned low[2] = {__byte_perm(columns[0], columns[1], 0x5140), __byte_perm(columns[2], columns[3], 0x5140)};
    const unsigned high[2] = {__byte_perm(columns[0], columns[1], 0x7362), __byte_perm(columns[2], columns[3], 0x7362)};
    rows[0] = __byte_perm(low[0], low[1], 0x5410);
    rows[1] = __byte_perm(low[0], low[1], 0x7632);
    rows[2] = __byte_perm(high[0], high[1], 0x5410);
    rows[3] = __byte_perm(high[0], high[1], 0x7632);
  }
};

}  // namespace matmill
