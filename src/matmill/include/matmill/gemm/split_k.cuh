// k split over blocks: which terms of it a block of grid.z sums.
#pragma once

namespace matmill {

struct Part {
  int first, terms;

  // Whole k-tiles of BK to each part; the last ones may have fewer, or none.
  template <int BK>
  static __device__ __forceinline__ Part own(int k) {
    const int share = ((k + BK - 1) / BK + gridDim.z - 1) / gridDim.z * BK;
    const int first = int(min(static_cast<long long>(k), static_cast<long long>(blockIdx.z) * share));
    return {first, min(share, k - first)};
  }
};

}  // namespace matmill
