// Groups of products: which group a tile is of, and where the group's operands are.
#pragma once

#include "matmill/dtype/epilogue.cuh"

namespace matmill {

// One group: its operands, their strides in elements, its extents, and the number of its first tile in the grid.
struct Group {
  const void *a, *b, *c;
  void* d;
  Index a_row, a_column, b_row, b_column, c_row, c_column, d_row, d_column;
  int m, n, k, first_tile;
};

template <int COUNT>
struct GroupTable {
  Group groups[COUNT];
};

// Returns the last of `count` groups whose first tile, first_tile(number), is not behind `tile`.
template <class FirstTile>
__device__ __forceinline__ int last_not_behind(int count, int tile, const FirstTile& first_tile) {
  int low = 0;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (first_tile(middle) <= tile ? low : high) = middle;
  }
  return low;
}

// The ends of groups along a dimension of a matrix that all share, as torch's grouped_mm takes them: group g starts where
// group g - 1 ends. Ends are `words` words of 32 bits apart, of which the first is read: the lower one of 64 bits. Those
// outside of the matrix count as its ends, so that none leads out of it.
struct GroupOffsets {
  const int* ends;
  int words, groups, extent;

  // Where group g starts; with g = groups, where what no group has starts.
  __device__ __forceinline__ int start(int g) const {
    return g == 0 ? 0 : min(max(ends[(g - 1) * words], 0), extent);
  }
  __device__ __forceinline__ int end(int g) const { return max(start(g), g < groups ? start(g + 1) : extent); }
};

// A tile of rows of a group: the group, its rows, and the number of the tile among the group's.
struct GroupTile {
  int group, first, last, tile;
};

// Returns the group of the index-th tile, where each BM rows of a group are `columns` tiles. Rows that no group has are a
// group of their own, number offsets.groups. A higher number says that there is no such tile. All lanes of a warp call it:
// each looks at one of 32 groups.
template <int BM>
__device__ __forceinline__ GroupTile find_group(const GroupOffsets& offsets, int columns, int index) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int group = lane; group - lane <= offsets.groups; group += 32) {
    const bool any = group <= offsets.groups;
    const int first = any ? offsets.start(group) : 0, last = any ? offsets.end(group) : 0;
    const int tiles = (last - first + BM - 1) / BM * columns;
    int end = before + tiles;  // of this lane's group and all before it, once they are added
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int others = __shfl_up_sync(~0u, end - before, step);
      if (lane >= step) end += others;
    }
    const unsigned behind = __ballot_sync(~0u, index < end);
    if (behind != 0) {
      const int owner = __ffs(behind) - 1;
      return {__shfl_sync(~0u, group, owner), __shfl_sync(~0u, first, owner), __shfl_sync(~0u, last, owner),
              index - __shfl_sync(~0u, end - tiles, owner)};
    }
    before = __shfl_sync(~0u, end, 31);
  }
  return {offsets.groups + 1, 0, 0, 0};
}

}  // namespace matmill
