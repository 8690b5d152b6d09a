// The part of the CUDA runtime and driver that host code of public kernels calls, on top of four functions of Python:
// memory, copies, tensor maps and launches. All other calls succeed and do nothing.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <string>

namespace {

// A launch as Python gets it: shape, and the addresses of the arguments' values.
struct LaunchRecord {
  const char* entry;
  unsigned grid[3], block[3], cluster[3];
  size_t dynamic_shared;
  int pdl;
  void** args;
};

struct TensorMapRecord {
  int element, rank, interleave, swizzle, promotion, nan_fill;
  uint64_t address, sizes[5], strides[4];
  uint32_t box[5], element_strides[5];
};

struct Callbacks {
  uint64_t (*allocate)(size_t bytes);
  int (*copy)(uint64_t to, uint64_t from, size_t bytes, int value, int kind);
  int (*encode)(const TensorMapRecord*, void* map);
  int (*launch)(const LaunchRecord*);
} python;

// `copy` with this kind fills memory with the byte `value`.
constexpr int kFill = -1;

std::map<const void*, std::string>& entries() {
  static std::map<const void*, std::string> names;
  return names;
}

struct Configuration {
  dim3 grid, block;
  size_t dynamic_shared;
} configuration;

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, void** args, size_t dynamic_shared,
                   dim3 cluster = dim3(1, 1, 1), bool pdl = false) {
  const auto name = entries().find(kernel);
  if (name == entries().end()) return cudaErrorInvalidDeviceFunction;
  const LaunchRecord record{name->second.c_str(), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
                            {cluster.x, cluster.y, cluster.z}, dynamic_shared, pdl, args};
  return python.launch(&record) ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t copy(const void* to, const void* from, size_t bytes, int value, int kind) {
  const auto address = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  return python.copy(address(to), address(from), bytes, value, kind) ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

extern "C" {

void matmill_set_callbacks(const Callbacks* callbacks) { python = *callbacks; }

// What nvcc's host code calls.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  entries()[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_shared, struct CUstream_st*) {
  configuration = {grid, block, dynamic_shared};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_shared, void*) {
  *grid = configuration.grid, *block = configuration.block, *dynamic_shared = configuration.dynamic_shared;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t dynamic_shared,
                               cudaStream_t) {
  return launch(reinterpret_cast<const void*>(kernel), grid, block, args, dynamic_shared);
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** args, size_t dynamic_shared,
                             cudaStream_t) {
  return launch(kernel, grid, block, args, dynamic_shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args) {
  dim3 cluster(1, 1, 1);
  bool pdl = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& each = config->attrs[i];
    if (each.id == cudaLaunchAttributeClusterDimension) {
      cluster = dim3(each.val.clusterDim.x, each.val.clusterDim.y, each.val.clusterDim.z);
    }
    if (each.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      pdl = each.val.programmaticStreamSerializationAllowed;
    }
  }
  return launch(kernel, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, cluster, pdl);
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = reinterpret_cast<void*>(python.allocate(bytes));
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, bytes, 0, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return copy(to, from, bytes, 0, kind);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return copy(to, nullptr, bytes, value, kFill); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return copy(to, nullptr, bytes, value, kFill);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType element, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  TensorMapRecord record{element, int(rank), interleave, swizzle, promotion, fill, reinterpret_cast<uint64_t>(address)};
  std::memcpy(record.sizes, sizes, rank * sizeof *sizes);
  std::memcpy(record.strides, strides, (rank - 1) * sizeof *strides);
  std::memcpy(record.box, box, rank * sizeof *box);
  std::memcpy(record.element_strides, steps, rank * sizeof *steps);
  return python.encode(&record, map) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) { return cuGetErrorString(CUDA_SUCCESS, text); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = std::strcmp(symbol, "cuTensorMapEncodeTiled") ? nullptr : reinterpret_cast<void*>(cuTensorMapEncodeTiled);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// An H100's answers.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->sharedMemPerBlockOptin = 232448;
  properties->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t(1) << 36;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*) { return cudaErrorNotSupported; }
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
}
