// DeepGEMM's bf16 kernel for sm_90: D (m, n) = A (m, k) B (n, k)^T, all row-major, D of bf16. The library compiles such
// instances at run time; its heuristics choose the constants, and its tensor maps are those of make_tma_2d_desc.
// sizes: m, n, k, blocks.
#include <cuda.h>

#include <deep_gemm/impls/sm90_bf16_gemm.cuh>

namespace {

constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 64, kStages = 4, kSwizzle = 128;
constexpr int kProducers = 128, kConsumers = 256, kCluster = 2, kSMs = 2;

CUtensorMap tensor_map(void* data, int inner, int outer, int box_outer) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {cuuint64_t(inner), cuuint64_t(outer)}, strides[1] = {cuuint64_t(inner) * 2};
  const cuuint32_t box[2] = {kSwizzle / 2, cuuint32_t(box_outer)}, steps[2] = {1, 1};
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

}  // namespace

extern "C" int launch(void** arrays, const int* sizes) {
  using namespace deep_gemm;
  const uint32_t m = sizes[0], n = sizes[1], k = sizes[2];
  const auto kernel =
      sm90_bf16_gemm_impl<cute::UMMA::Major::K, cute::UMMA::Major::K, 0, 0, 0, 1, kBlockM, kBlockN, kBlockK, kSwizzle,
                          kSwizzle, kSwizzle, kStages, kProducers, kConsumers, kCluster, false, kSMs, GemmType::Normal,
                          false, cutlass::bfloat16_t>;
  const int shared = kBlockM * kBlockN * 2 + kStages * (kBlockM + kBlockN) * kBlockK * 2 + 16 * 8 * 2;

  cudaLaunchAttribute attributes[1];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kSMs), config.blockDim = dim3(kProducers + kConsumers), config.dynamicSmemBytes = shared;
  config.attrs = attributes, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<int*>(nullptr), m, n, k, tensor_map(arrays[0], k, m, kBlockM),
                            tensor_map(arrays[1], k, n, kBlockN), tensor_map(arrays[2], n, m, kBlockM));
}
