"""Host code on the runtime whose kernels the emulator runs: memory, tensor maps, clusters, launches, errors."""

from __future__ import annotations

import shutil
import subprocess
from ctypes import CDLL
from pathlib import Path

import numpy as np
import pytest

from lab.host_program import load_program, load_runtime
from matmill.cuda_source.headers import toolkit
from matmill.emulator import Order
from matmill.errors import ArgumentError
from support.ptx_tools import compile_ptx

# What nvcc makes of a launch, by hand: a host function stands for each kernel.
HOST = """
#include <cuda.h>
#include <cuda_runtime_api.h>
extern "C" {
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, struct CUstream_st*);
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
}
static void box() {}
static void ranks() {}
static const bool registered = [] {
  __cudaRegisterFunction(0, (const char*)box, 0, "box", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(0, (const char*)ranks, 0, "ranks", -1, 0, 0, 0, 0, 0);
  return true;
}();

int main(int count, char** words) { return words[count] ? -1 : count; }

extern "C" int launch(void** arrays, const int* sizes) {
  int rows = sizes[0], shift = 100;
  void *copy, *host_function;
  cudaMalloc(&copy, rows * 64);
  cudaMemset(copy, 0, rows * 64);
  cudaMemcpy(copy, arrays[0], rows * 64, cudaMemcpyDeviceToDevice);
  int value = 7, back = 0;
  cudaMemcpy(copy, &value, 4, cudaMemcpyHostToDevice);
  cudaMemcpy(&back, copy, 4, cudaMemcpyDeviceToHost);
  if (back != 7) return 1;

  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &host_function, 12000, 0, nullptr);
  CUtensorMap map;
  cuuint64_t extents[2] = {16, cuuint64_t(rows)}, strides[1] = {64};
  cuuint32_t shape[2] = {16, cuuint32_t(rows)}, steps[2] = {1, 1};
  if (reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(host_function)(
          &map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, copy, extents, strides, shape, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
          CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) return 2;

  void* first[] = {&map, &arrays[1], &rows, &shift};
  __cudaPushCallConfiguration(dim3(1), dim3(32), 0, nullptr);
  dim3 grid, block;
  size_t shared;
  __cudaPopCallConfiguration(&grid, &block, &shared, nullptr);
  if (cudaLaunchKernel((const void*)box, grid, block, first, shared, nullptr)) return 3;

  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(4), config.blockDim = dim3(32), config.attrs = &cluster, config.numAttrs = 1;
  void* second[] = {&arrays[2]};
  return cudaLaunchKernelExC(&config, (const void*)ranks, second) ? 4 : 0;
}
"""
KERNELS = """
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void box(const __grid_constant__ Map map, int* out, int rows, int shift) {
  __shared__ alignas(128) int tile[16 * 8];
  __shared__ unsigned long long full;
  unsigned at = __cvta_generic_to_shared(tile), barrier = __cvta_generic_to_shared(&full), done = 0;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(rows * 64) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {0, 0}], [%2];"
                 :: "r"(at), "l"(&map), "r"(barrier) : "memory");
  }
  __syncthreads();
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier) : "memory");
  for (int i = threadIdx.x; i < 16 * rows; i += 32) out[i] = tile[i] + shift;
}
extern "C" __global__ void ranks(int* out) {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.x] = rank;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[CDLL, Path]:
    headers = toolkit()
    compiler = shutil.which("g++")
    if compiler is None or not any((folder / "cuda.h").is_file() for folder in headers):
        pytest.skip("needs g++ and the headers of CUDA")
    folder = tmp_path_factory.mktemp("host")
    command = (compiler, "-fPIC", *(f"-I{each}" for each in headers))
    runtime = load_runtime(folder, command)
    (folder / "host.cpp").write_text(HOST, encoding="utf-8")
    library = folder / "host.so"
    subprocess.run([*command, "-shared", "-o", str(library), str(folder / "host.cpp")], check=True)
    return runtime, library


@pytest.mark.parametrize("late", [False, True])
def test_host_code_makes_tensor_maps_and_launches(program: tuple[CDLL, Path], late: bool) -> None:
    run = load_program(*program, compile_ptx(KERNELS), Order(late_copies=late))
    a, out, ranks = (np.arange(128, dtype=np.int32).reshape(8, 16), np.zeros((8, 16), np.int32), np.zeros(4, np.int32))
    run({"a": a, "out": out, "ranks": ranks}, [8])
    want = a + 100
    want[0, 0] = 107
    np.testing.assert_array_equal(out, want)
    assert ranks.tolist() == [0, 1, 0, 1]
    assert all(report.ok for report in run.reports)
    assert [(launch.grid, launch.cluster) for launch in run.launches] == [
        ((1, 1, 1), (1, 1, 1)),
        ((4, 1, 1), (2, 1, 1)),
    ]


def test_a_mistake_in_the_kernel_is_in_its_report(program: tuple[CDLL, Path]) -> None:
    hasty = KERNELS.replace("while (!done)", "if (0)")
    run = load_program(*program, compile_ptx(hasty), Order())
    run({"a": np.zeros((8, 16), np.int32), "out": np.zeros((8, 16), np.int32), "ranks": np.zeros(4, np.int32)}, [8])
    assert "race" in {hazard.kind for hazard in run.reports[0].hazards}


def test_a_program_of_its_own(program: tuple[CDLL, Path]) -> None:
    assert load_program(*program, compile_ptx(KERNELS), Order()).main("--m=1", "--n=2") == 3


def test_what_the_driver_would_refuse_is_raised(program: tuple[CDLL, Path]) -> None:
    run = load_program(*program, compile_ptx(KERNELS), Order())
    arrays = {"a": np.zeros((300, 16), np.int32), "out": np.zeros((300, 16), np.int32), "ranks": np.zeros(4, np.int32)}
    with pytest.raises(ArgumentError, match=r"box\[1\]: got 300"):
        run(arrays, [300])
