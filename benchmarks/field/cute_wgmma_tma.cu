// CuTe's tutorial of wgmma and TMA: C (m, n) = A (m, k) B (n, k)^T, all of half_t, C column-major.
// sizes: m, n, k, and 1 where A and B are row-major.
#define main tutorial_main
#include "wgmma_tma_sm90.cu"

extern "C" int launch(void** arrays, const int* sizes) {
  const int m = sizes[0], n = sizes[1], k = sizes[2];
  const bool rows = sizes[3];
  const auto *A = static_cast<half_t*>(arrays[0]), *B = static_cast<half_t*>(arrays[1]);
  gemm(rows ? 'T' : 'N', rows ? 'N' : 'T', m, n, k, half_t(1.f), A, rows ? k : m, B, rows ? k : n, half_t(0.f),
       static_cast<half_t*>(arrays[2]), m);
  return 0;
}
