// Elements that start anywhere, from vectors of 16 bytes that do not.
#pragma once

namespace matmill {

// The 16 bytes from byte `first` on of the 32 of two neighbouring vectors; `first` is even and below 16.
__device__ __forceinline__ uint4 realigned(const uint4& low, const uint4& high, unsigned first) {
  unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = first & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = first & 4 ? w[i + 1] : w[i];
  const unsigned bits = 8 * (first & 3);
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
          __funnelshift_r(w[3], w[4], bits)};
}

// Stores the first `count` of the eight 16-bit elements of a vector, fewer than all; `to` is on 16 bytes.
__device__ __forceinline__ void store_first(void* to, const uint4& vector, int count) {
  unsigned char* const bytes = static_cast<unsigned char*>(to);
  const bool four = count & 4, two = count & 2;
  if (four) *reinterpret_cast<uint2*>(bytes) = uint2{vector.x, vector.y};
  if (two) *reinterpret_cast<unsigned*>(bytes + (four ? 8 : 0)) = four ? vector.z : vector.x;
  const unsigned last = four ? (two ? vector.w : vector.z) : two ? vector.y : vector.x;
  if (count & 1) *reinterpret_cast<unsigned short*>(bytes + 2 * (count & 6)) = static_cast<unsigned short>(last);
}

// Stores the last `count` of them.
__device__ __forceinline__ void store_last(void* to, const uint4& vector, int count) {
  unsigned char* const bytes = static_cast<unsigned char*>(to);
  const bool four = count & 4, two = count & 2;
  if (four) *reinterpret_cast<uint2*>(bytes + 8) = uint2{vector.z, vector.w};
  if (two) *reinterpret_cast<unsigned*>(bytes + (four ? 4 : 12)) = four ? vector.y : vector.w;
  const unsigned first = four ? (two ? vector.x : vector.y) : two ? vector.z : vector.w;
  if (count & 1) *reinterpret_cast<unsigned short*>(bytes + 16 - 2 * count) = static_cast<unsigned short>(first >> 16);
}

}  // namespace matmill
