// DeepGEMM's bf16 kernel for sm_90: D (m, n) = A (m, k) B (n, k)^T. The library compiles such instances at run time; its
// heuristics choose the constants, and its tensor maps are those of make_tma_2d_desc.
// sizes: m, n, k, the instance.
#include <cuda.h>

#include <deep_gemm/impls/sm90_bf16_gemm.cuh>

namespace {

using cute::UMMA::Major;

constexpr int kBlockK = 64, kProducers = 128, kSMs = 2;

// A matrix with rows of `inner` elements, in boxes of `box` rows, as wide as the swizzle (without one, of `width`).
template <class Element>
CUtensorMap tensor_map(void* data, int inner, int outer, int box, int swizzle, int width = 0) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {cuuint64_t(inner), cuuint64_t(outer)}, strides[1] = {inner * sizeof(Element)};
  const cuuint32_t shape[2] = {cuuint32_t(swizzle ? swizzle / sizeof(Element) : width), cuuint32_t(box)};
  const cuuint32_t steps[2] = {1, 1};
  cuTensorMapEncodeTiled(
      &map, sizeof(Element) == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, data, sizes,
      strides, shape, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

template <Major kMajor>
CUtensorMap operand(void* data, int extent, int k, int block) {
  return kMajor == Major::K ? tensor_map<__nv_bfloat16>(data, k, extent, block, 128)
                            : tensor_map<__nv_bfloat16>(data, extent, k, kBlockK, 128);
}

template <int kBlockM, int kBlockN, int kStages, int kCluster, bool kMulticastA, Major kMajor, class Result, bool kAdd>
int product(void** arrays, const int* sizes) {
  using namespace deep_gemm;
  constexpr int kConsumers = kBlockM <= 64 ? 128 : 256;
  constexpr int kSwizzle = sizeof(Result) == 4 ? 0 : kBlockN % 64 ? 64 : 128;
  const uint32_t m = sizes[0], n = sizes[1], k = sizes[2];
  const auto kernel = sm90_bf16_gemm_impl<kMajor, kMajor, 0, 0, 0, 1, kBlockM, kBlockN, kBlockK, 128, 128, kSwizzle,
                                          kStages, kProducers, kConsumers, kCluster, kMulticastA, kSMs,
                                          GemmType::Normal, kAdd, Result>;
  cudaLaunchAttribute attributes[1];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kSMs), config.blockDim = dim3(kProducers + kConsumers);
  config.dynamicSmemBytes = kBlockM * kBlockN * sizeof(Result) + kStages * (kBlockM + kBlockN) * kBlockK * 2 + 256;
  config.attrs = attributes, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<int*>(nullptr), m, n, k,
                            operand<kMajor>(arrays[0], m, k, kBlockM), operand<kMajor>(arrays[1], n, k, kBlockN),
                            tensor_map<Result>(arrays[2], n, m, kBlockM, kSwizzle, kBlockN));
}

}  // namespace

extern "C" int launch(void** arrays, const int* sizes) {
  switch (sizes[3]) {
    case 0: return product<128, 128, 4, 2, false, Major::K, cutlass::bfloat16_t, false>(arrays, sizes);
    case 1: return product<128, 128, 4, 2, true, Major::K, cutlass::bfloat16_t, false>(arrays, sizes);
    case 2: return product<64, 32, 12, 1, false, Major::K, cutlass::bfloat16_t, false>(arrays, sizes);
    case 3: return product<128, 128, 4, 1, false, Major::MN, float, true>(arrays, sizes);
  }
  return 1;
}
