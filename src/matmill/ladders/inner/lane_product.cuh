// One pass over E and F: each of S threads that share a k keeps TM x TN outputs in registers and takes V k at a time.
//
//   global E ── up to 16 bytes a load ──▶ registers e[U][TM][V] ──┐
//   global F ── up to 16 bytes a load ──▶ registers f[U][TN][V] ──┴─▶ acc[TM][TN], V * TM * TN FMAs each
//
// The U pieces of one round are loaded before the first is used: each thread has U * (TM + TN) loads of 16 bytes in
// flight. The S threads are adjacent lanes, so one request serves what they share. The first threads of the grid take
// the last k % V terms one by one.
#pragma once

#include "matmill/dtype/epilogue.cuh"
#include "kernels/inner/piece.cuh"

namespace matmill {

template <class Config>
struct LaneProduct {
  static constexpr int M = Config::M, N = Config::N, TM = Config::TM, TN = Config::TN;
  static constexpr int V = Config::V, U = Config::U;
  static constexpr int S = Config::S, ACROSS = Config::ACROSS;
  static constexpr int K_THREADS = Config::BS / S;  // groups of S threads per block, each with its own k
  static constexpr Index STEP = Index(Config::GS) * K_THREADS;
  using PieceE = Piece<Scalar, TM, V, ALONG_K, Config::E_WIDTH>;
  using PieceF = Piece<Scalar, TN, V, Config::F_MODE, Config::F_WIDTH>;

  Acc acc[TM * TN] = {};

  // A tile beyond the last row or column repeats it; its sums are discarded.
  static __device__ __forceinline__ int row0() { return min(int(threadIdx.x % S / ACROSS) * TM, M - 1); }
  static __device__ __forceinline__ int column0() { return min(int(threadIdx.x % S % ACROSS) * TN, N - 1); }

  __device__ __forceinline__ void add(const PieceE& e, const PieceF& f) {
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i * TN + j] += Number::up(e.at(i, v)) * Number::up(f.at(j, v));
  }

  __device__ __forceinline__ void run(const Scalar* E, const Scalar* F, Index k, Index e_row, Index f_k,
                                      Index f_column) {
    const Index first = Index(blockIdx.x) * K_THREADS + threadIdx.x / S;
    const Index pieces = k / V;
    const int last_row = S / ACROSS * TM == M ? TM - 1 : min(TM, M - row0()) - 1;
    const int last_column = ACROSS * TN == N ? TN - 1 : min(TN, N - column0()) - 1;
    const Scalar* const e = E + row0() * e_row;
    const Scalar* const f = F + column0() * f_column;

    Index piece = first;
    for (; piece + (U - 1) * STEP < pieces; piece += U * STEP) {
      PieceE es[U];
      PieceF fs[U];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const Index at = (piece + u * STEP) * V;
        es[u].read(e + at, e_row, 1, last_row);
        fs[u].read(f + at * f_k, f_column, f_k, last_column);
      }
#pragma unroll
      for (int u = 0; u < U; ++u) add(es[u], fs[u]);
    }
    if constexpr (U > 1) {
      for (; piece < pieces; piece += STEP) {
        PieceE es;
        PieceF fs;
        es.read(e + piece * V, e_row, 1, last_row);
        fs.read(f + piece * V * f_k, f_column, f_k, last_column);
        add(es, fs);
      }
    }

    for (Index at = pieces * V + first; at < k; at += STEP)
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
          acc[i * TN + j] +=
              Number::up(e[min(i, last_row) * e_row + at]) * Number::up(f[at * f_k + min(j, last_column) * f_column]);
  }
};

}  // namespace matmill
