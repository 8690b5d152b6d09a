// Split-K: the terms of k that a block of grid.z sums.
#pragma once

namespace matmill {

struct KSlice {
  int first, terms;

  // Slices are whole k-tiles of BK. The last slices may be shorter, or empty.
  template <int BK>
  static __device__ __forceinline__ KSlice of_block(int k) {
    return of<BK>(k, blockIdx.z);
  }

  template <int BK>
  static __device__ __forceinline__ KSlice of(int k, unsigned index) {
    const int slice_k = ((k + BK - 1) / BK + gridDim.z - 1) / gridDim.z * BK;
    const int first = int(min(static_cast<long long>(k), static_cast<long long>(index) * slice_k));
    return {first, min(slice_k, k - first)};
  }
};

}  // namespace matmill
