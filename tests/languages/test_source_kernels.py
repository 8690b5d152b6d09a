"""Kernels that CuPy and cuda-core have the source or the PTX of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matmill
from matmill.errors import ArgumentError, CompileError

CODE = """
extern "C" __global__ void doubled(const float* x, float* y, unsigned long long n) {
  unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
template <typename T> __global__ void scaled(T* x, T by) { x[threadIdx.x] *= by * FACTOR; }
extern "C" __global__ void raced(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = s[63 - threadIdx.x];
}
"""
OPTIONS = ("-DFACTOR=3",)


def cupy() -> Any:
    return pytest.importorskip("cupy")


def core() -> Any:
    return pytest.importorskip("cuda.core")


def program(options: dict[str, Any] | None = None) -> Any:
    settings = core().ProgramOptions(arch="sm_90", lineinfo=True, define_macro=("FACTOR", "3"), **(options or {}))
    return core().Program(CODE, code_type="c++", options=settings)


def test_a_raw_kernel(emulate: Any) -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    kernel = cupy().RawKernel(CODE, "doubled", OPTIONS)
    emulate(kernel, None, 1, 128, x, n=100, y=y)
    assert (y == 2 * x).all()
    with pytest.raises(ArgumentError, match=r"wanted doubled\(x, y, n\)"):
        emulate(kernel, None, 1, 128, x, m=100, y=y)


def test_a_raw_module(emulate: Any, tmp_path: Path) -> None:
    (tmp_path / "module.cu").write_text('#include "factor.h"\n' + CODE)
    (tmp_path / "factor.h").write_text("#define FACTOR 5\n")
    x = np.arange(32.0)
    emulate(cupy().RawModule(path=str(tmp_path / "module.cu")), "scaled<double>", 1, 32, x, 2.0)
    assert (x == 10 * np.arange(32.0)).all()


def test_headers_of_cupy_are_named_as_missing() -> None:
    code = '#include <cupy/complex.cuh>\nextern "C" __global__ void k(complex<float>* x) { *x = *x * *x; }'
    with pytest.raises(CompileError, match=r"headers were not found: cupy/complex\.cuh"):
        matmill.emulate(cupy().RawKernel(code, "k"), None, 1, 1, np.zeros(1, np.complex64))


def test_a_module_of_machine_code_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"got machine code, m\.cubin; wanted CUDA C\+\+ or PTX"):
        matmill.emulate(cupy().RawModule(path="m.cubin"), "k", 1, 1)


def test_a_race_of_a_raw_kernel() -> None:
    report = matmill.emulate(cupy().RawKernel(CODE, "raced", OPTIONS), None, 1, 64, np.ones(64, np.float32))
    assert [(h.kind, h.where) for h in report.hazards] == [("race", "kernel.cu:10")]


def test_a_program_of_cuda_core(emulate: Any) -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    emulate(program(), "doubled", 1, 128, x, y, 100)
    assert (y == 2 * x).all()


def test_a_race_of_cuda_core() -> None:
    report = matmill.emulate(program(), "raced", 1, 64, np.ones(64, np.float32))
    (hazard,) = report.hazards
    assert hazard.kind == "race"
    assert hazard.where.endswith(":10")


def test_object_code(emulate: Any) -> None:
    x = np.arange(100, dtype=np.float32)
    ptx = matmill.emulate(program(), "doubled", 1, 128, x, np.zeros(100, np.float32), 100).ptx
    y = np.zeros(100, np.float32)
    emulate(core().ObjectCode.from_ptx(ptx.encode()), "doubled", 1, 128, x, y, 100)
    assert (y == 2 * x).all()
    with pytest.raises(ArgumentError, match="got cubin of cuda-core; wanted CUDA"):
        emulate(program().compile("cubin"), "doubled", 1, 128, x, y, 100)


def test_other_objects_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"source: got a builtins\.int; wanted CUDA C\+\+ or PTX"):
        matmill.emulate(3, None, 1, 1)
