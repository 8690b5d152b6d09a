// Vector loads and stores: the unsigned type of each access width.
#pragma once

namespace matmill {

template <int BYTES>
struct Word;
template <>
struct Word<1> {
  using Type = unsigned char;
};
template <>
struct Word<2> {
  using Type = unsigned short;
};
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

// Copies COUNT elements, 1 to 16 bytes, in one access. Both addresses are multiples of that size.
template <int COUNT, class T>
__device__ __forceinline__ void copy(T* to, const T* from) {
  using Bits = typename Word<COUNT * sizeof(T)>::Type;
  *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(from);
}

}  // namespace matmill
