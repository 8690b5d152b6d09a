#pragma once
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                          \
  do {                                                                       \
    cudaError_t error = (call);                                              \
    if (error != cudaSuccess) {                                              \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)

__host__ __device__ inline int blocks_for(int n, int threads) { return (n + threads - 1) / threads; }
