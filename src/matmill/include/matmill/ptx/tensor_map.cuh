// A tensor map as a kernel parameter. The host encodes it for each launch. PTX ISA, "Tensors: Tensor-map"; CUDA driver
// API, "CUtensorMap".
#pragma once

namespace matmill {

struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

}  // namespace matmill
