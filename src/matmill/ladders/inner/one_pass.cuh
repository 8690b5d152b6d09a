// All M x N outputs in one pass: each k is read once, by S threads (S / ACROSS by ACROSS) that keep TM x TN sums each.
//
//   global E[TM][i], F[i][TN] ──▶ registers e[TM], f[TN] ──▶ acc[TM][TN] ──▶ shuffles, shared ──▶ one atomic per output
//
//   thread t of block b: outputs of tile t % S; k's from b BS / S + t / S in steps of GS BS / S
//
// (TM + TN) / (TM TN) elements per FMA come from global memory, instead of 2. Threads that share a k are adjacent
// lanes, so that DRAM sees E and F once.
#include "ladders/inner/block_sum.cuh"
#include "matmill/dtype/epilogue.cuh"

extern "C" __global__ void __launch_bounds__(Config::BS, 1)
    one_pass(const Scalar* __restrict__ E, const Scalar* __restrict__ F, Acc* __restrict__ sums, Index k, Index e_row,
             Index e_k, Index f_k, Index f_column) {
  constexpr int M = Config::M, N = Config::N, TM = Config::TM, TN = Config::TN, BS = Config::BS;
  constexpr int S = Config::S, ACROSS = Config::ACROSS;
  constexpr Index STEP = Index(Config::GS) * (BS / S);
  const int row0 = threadIdx.x % S / ACROSS * TM;
  const int column0 = threadIdx.x % S % ACROSS * TN;

  Acc acc[TM * TN] = {};
  for (Index at = Index(blockIdx.x) * (BS / S) + threadIdx.x / S; at < k; at += STEP) {
    Acc e[TM], f[TN];
    // Rows and columns beyond the last repeat it; their sums are discarded.
#pragma unroll
    for (int i = 0; i < TM; ++i) e[i] = Number::up(E[min(row0 + i, M - 1) * e_row + at * e_k]);
#pragma unroll
    for (int j = 0; j < TN; ++j) f[j] = Number::up(F[at * f_k + min(column0 + j, N - 1) * f_column]);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[i * TN + j] += e[i] * f[j];
  }

  __shared__ matmill::BlockSum<Acc, BS, S, TM * TN> block;
  block.put(acc);
  __syncthreads();
  for (int output = threadIdx.x; output < M * N; output += BS) {
    const int row = output / N, column = output % N;
    atomicAdd(&sums[output], block.total(row / TM * ACROSS + column / TN, row % TM * TN + column % TN));
  }
}
