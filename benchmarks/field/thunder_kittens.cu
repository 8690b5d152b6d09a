// ThunderKittens' bf16 product for H100: C (m, n) = A (m, k) B (k, n), all row-major.
// sizes: m, n, k, multiples of 128, 256 and 64; blocks, which its benchmark has 132 of.
#define main benchmark_main
#include "bf16_h100_gemm.cu"

extern "C" int launch(void** arrays, const int* sizes) {
  using Product = matmul_template<2, 4, 8>;
  const auto at = [&](int i) { return static_cast<bf16*>(arrays[i]); };
  inner_run<Product>(at(0), at(1), at(2), sizes[0], sizes[1], sizes[2], dim3(sizes[3]),
                     dim3(kittens::prototype::detail::NUM_THREADS_v<Product>));
  return 0;
}
