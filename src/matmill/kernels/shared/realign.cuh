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

}  // namespace matmill
