// The pipeline of kernels/hgemm/mma.cuh on packed row-major float32 matrices. Each element becomes the sum of two tf32
// numbers in registers of the warp that multiplies it, and of the four products of two such sums mma.sync adds the three
// largest (hgemm/warp_tile_f32.cuh). All of k is one sum on the tensor cores, which cut off what does not fit.
#include "kernels/hgemm/mma.cuh"

namespace matmill {

// That warp tile, whose sums have three steps here and are promoted then. In the second a sum neither starts nor ends.
template <int WM, int WN>
struct OneSumTile : SplitTile<24, WM, WN> {
  using Promoted = SplitTile<24, WM, WN>;
  using Promoted::partial, Promoted::sums, Promoted::TM, Promoted::TN;

  __device__ __forceinline__ OneSumTile() {
#pragma unroll
    for (int t = 0; t < TM * TN; ++t) partial[t / TN][t % TN] = {};
  }
  __device__ __forceinline__ void multiply(const typename Promoted::Fragment& f, int) { Promoted::multiply(f, 1); }
  __device__ __forceinline__ bool unscale() {
#pragma unroll
    for (int e = 0; e < TM * TN * 4; ++e) sums[e / 4 / TN][e / 4 % TN][e % 4] = partial[e / 4 / TN][e / 4 % TN].x[e % 4];
    return Promoted::unscale();
  }
};

template <int WM, int WN, int ROW_BYTES>
struct MmaReader<OneSumTile<WM, WN>, false, ROW_BYTES> : MmaReader<SplitTile<24, WM, WN>, false, ROW_BYTES> {
  using MmaReader<SplitTile<24, WM, WN>, false, ROW_BYTES>::MmaReader;
};

template <int WM, int WN>
struct MmaTypes<float, Config, WM, WN> {
  using Acc = float;
  using Warp = OneSumTile<WM, WN>;
  using Store = PairStore<Warp, float, Config::D_VEC>;
};

}  // namespace matmill

using Tile = matmill::MmaGemm<float, Config>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    tf32x3(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
           float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_origin<Tile, Config::GROUP_M>(blockIdx.x, m, n);
  const Tile::Work work{A + size_t(origin.row) * k, B + origin.column, origin, k};

  Tile tile;
  tile.run(shared, Tile::CopyA(work.a, k, 1, m - origin.row, k), Tile::CopyB(work.b, 1, n, n - origin.column, k), k);
  tile.complete([&] { return work; }, k, 1, n, 1, m, n);
  tile.store(shared, C, n, 1, C, n, 1, origin, m, n, alpha, beta);
}
