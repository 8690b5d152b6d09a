// Each of the m x n outputs, one after the other, is an inner product of length k by all GS x BS threads of the grid.
//
//   global E[row][i], F[i][column] ──▶ share (thread t: i in [t L, (t + 1) L), L = k / (GS BS) rounded up)
//   share ──▶ shared shares[BS] ──▶ tree ──▶ shares[0] ──▶ one atomic add per block ──▶ global sums[row][column]
//
//   per output: store the share │ barrier │ log2(BS) steps of the tree, a barrier after each │ thread 0 adds
//
// 2 elements per FMA come from global memory, and adjacent lanes read L elements apart: each in its own sector. The
// next output's shares need no barrier before them: only thread 0 reads shares[0] after the last one.
#include "matmill/dtype/epilogue.cuh"

extern "C" __global__ void __launch_bounds__(Config::BS)
    basic(const Scalar* __restrict__ E, const Scalar* __restrict__ F, Acc* __restrict__ sums, int m, int n, Index k,
          Index e_row, Index e_k, Index f_k, Index f_column) {
  constexpr int GS = Config::GS;
  constexpr int BS = Config::BS;
  constexpr int HALF = BS <= 32 ? 16 : BS <= 64 ? 32 : BS <= 128 ? 64 : BS <= 256 ? 128 : BS <= 512 ? 256 : 512;
  __shared__ Acc shares[BS];
  const int t = threadIdx.x;
  const Index length = (k + Index(GS) * BS - 1) / (Index(GS) * BS);
  const Index first = (Index(blockIdx.x) * BS + t) * length;
  const Index last = first + length < k ? first + length : k;

  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      const Scalar* e = E + row * e_row;
      const Scalar* f = F + column * f_column;
      Acc share = 0;
      for (Index i = first; i < last; ++i) share += Number::up(e[i * e_k]) * Number::up(f[i * f_k]);

      shares[t] = share;
      __syncthreads();
      for (int apart = HALF; apart > 0; apart /= 2) {
        if (t < apart && t + apart < BS) shares[t] += shares[t + apart];
        __syncthreads();
      }
      if (t == 0) atomicAdd(&sums[row * n + column], shares[0]);
    }
  }
}
