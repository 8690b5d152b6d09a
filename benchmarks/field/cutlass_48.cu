// CUTLASS's example 48, a warp-specialized product in tf32: D (m, n) = A (m, k) B (n, k)^T + C / 2, of float32; A and B
// row-major, C and D column-major.
// sizes: m, n, k.
#define main example_main
#include "48_hopper_warp_specialized_gemm.cu"

extern "C" int launch(void** arrays, const int* sizes) {
  const int m = sizes[0], n = sizes[1], k = sizes[2];
  const auto at = [&](int i) { return static_cast<float*>(arrays[i]); };
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k},
      {at(0), cutlass::make_cute_packed_stride(StrideA{}, {m, k, 1}), at(1),
       cutlass::make_cute_packed_stride(StrideB{}, {n, k, 1})},
      {{1.f, 0.5f}, at(2), cutlass::make_cute_packed_stride(StrideC{}, {m, n, 1}), at(3),
       cutlass::make_cute_packed_stride(StrideD{}, {m, n, 1})}};
  Gemm gemm;
  if (gemm.initialize(arguments) != cutlass::Status::kSuccess) return 1;
  return gemm.run() != cutlass::Status::kSuccess;
}
