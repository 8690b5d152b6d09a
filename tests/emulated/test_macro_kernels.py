"""Kernels that macros define are found by name, with their parameters; files without a kernel are refused as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import matmill
from matmill.cuda_source.unit import kernels
from matmill.errors import ArgumentError

NAMED = """
#define KERNEL(name, op) extern "C" __global__ void name(float* x, int n) { \\
    int t = threadIdx.x; if (t < n) x[t] = op x[t]; }
KERNEL(twice, 2 *)
KERNEL(negative, -);
"""
PASTED = """
#define KERNEL(name, op) __global__ void name##_all(float* x) { x[threadIdx.x] = op x[threadIdx.x]; }
namespace ops { KERNEL(twice, 2 *) }
__global__ void plain(float* x) { x[threadIdx.x] = 1; }
void host() { plain<<<1, 1>>>(0); }
"""
SIGNATURE = """
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(64) name
#ifdef __CUDACC__
#define GLOBAL __global__
#else
#define GLOBAL
#endif
KERNEL(one)(float* x) { x[threadIdx.x] = 1; }
GLOBAL void two(float* x) { x[threadIdx.x] = 2; }
"""
LIST = """
#define DEFINE(name, value) __device__ float name##_value() { return value; } \\
    extern "C" __global__ void name(float* x) { x[threadIdx.x] = name##_value(); }
#define FOR_ALL(F, ...) F(three, 3 __VA_ARGS__) F(four, 4 __VA_ARGS__)
FOR_ALL(DEFINE, + 0)
int main() { three<<<1, 32>>>(0); four<<<1, 32>>>(0); return 0; }
"""
TEMPLATE = """
#define DEFINE(T) template <int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }
DEFINE(float)
int main() { scale<5><<<1, 32>>>(nullptr); }
"""
OPAQUE = """
#define OPEN {
#define PASTE(a, b) a##b
extern "C" __global__ void PASTE(odd, _name)(float* x) OPEN x[threadIdx.x] = 7; }
"""
BOUNDS = """
#define AT_MOST(n) __launch_bounds__(n)
extern "C" __global__ void AT_MOST(64) bounded(float* x) { x[threadIdx.x] = 8; }
"""
NAMESPACE = """
#define OPEN namespace inside {
#define CLOSE }
OPEN
__global__ void kernel(float* x) { x[threadIdx.x] = 9; }
CLOSE
"""


@pytest.mark.parametrize(
    ("source", "entry", "value"),
    [
        (PASTED, "twice_all", 2), (PASTED, "ops::twice_all", 2), (PASTED, "plain", 1), (SIGNATURE, "one", 1),
        (SIGNATURE, "two", 2), (LIST, "three", 3), (LIST, "four", 4), (TEMPLATE, "scale<5>", 5), (TEMPLATE, None, 5),
        (OPAQUE, "odd_name", 7), (OPAQUE, None, 7), (BOUNDS, None, 8), (NAMESPACE, None, 9),
    ],
)  # fmt: skip
def test_they_run(source: str, entry: str | None, value: float) -> None:
    x = np.ones(32, np.float32)
    report = matmill.emulate(source, entry, 1, 32, x)
    assert (x == value).all()
    assert report.ok


def test_parameters_have_names() -> None:
    assert kernels(NAMED) == ["twice", "negative"]
    x = np.ones(8, np.float32)
    matmill.emulate(NAMED, "negative", 1, 8, x, np.int32(5))
    assert x.tolist() == [-1] * 5 + [1] * 3
    with pytest.raises(ArgumentError, match=r"wanted 2: float\* x, int n"):
        matmill.emulate(NAMED, "twice", 1, 8, x)


def test_macros_of_a_header(tmp_path: Path) -> None:
    (tmp_path / "define.h").write_text(NAMED.split("KERNEL(twice", maxsplit=1)[0], encoding="utf-8")
    (tmp_path / "use.cu").write_text('#include "define.h"\nKERNEL(thrice, 3 *)\n', encoding="utf-8")
    x = np.ones(8, np.float32)
    matmill.emulate(tmp_path / "use.cu", None, 1, 8, x, np.int32(8))
    assert (x == 3).all()


@pytest.mark.parametrize(("source", "names"), [(NAMED, "twice, negative"), (PASTED, "ops::twice_all, plain")])
def test_a_wrong_name_gets_them_all(source: str, names: str) -> None:
    for entry in (None, "nope"):
        with pytest.raises(ArgumentError, match=f"wanted one of {names}"):
            matmill.emulate(source, entry, 1, 32, np.ones(32, np.float32))


@pytest.mark.parametrize(
    "source",
    ["#define TEST(name) void name()\nTEST(hello) { }\nint main() { return 0; }", "int f(int x) { return x; }"],
)
def test_a_file_without_a_kernel(source: str) -> None:
    with pytest.raises(ArgumentError, match="wanted a file with a kernel"):
        matmill.emulate(source, None, 1, 32)


def test_a_macro_that_is_undefined_or_means_itself() -> None:
    source = """
    #define KERNEL(name) __global__ void name(float* x) { x[0] = 1; }
    #undef KERNEL
    #define KERNEL(name) __global__ void name(float* x) { KERNEL; x[0] = 2; }
    #define __device__ __device__
    int KERNEL;
    __device__ int f() { return 1; }
    __global__ void plain(float* x) { x[0] = f(); }
    """
    assert kernels(source) == ["plain"]
