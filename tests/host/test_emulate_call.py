"""`matmill.emulate`: sources, kernels' names, arguments of every kind, reports, suppressions."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import matmill
from matmill.errors import ArgumentError, CompileError, UnknownNameError
from matmill.launch import Struct
from matmill.testing.orders import Emulate
from matmill.testing.report import HazardError

#: Kernels among host code, as files for nvcc have them.
SOURCE = """#include <cuda_runtime.h>
#include <iostream>
#include <vector>
#include "opencv2/opencv.hpp"
#define CHECK(x) if ((x) != cudaSuccess) { std::cerr << "failed"; exit(1); }
using namespace std;
struct Span { const float* data; int size; vector<float> host() { return {}; } };
template <typename T, int N> __global__ void scale(T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = std::max(x[i] * N, T(0));
}
namespace sums { namespace {
__device__ float of(Span s) { float sum = 0; for (int i = 0; i < s.size; ++i) sum += s.data[i]; return sum; }
} __global__ void all(Span s, float* out, const float* __restrict__ zero) { *out = of(s) + (zero ? *zero : 0.0f); } }
__global__ void race(float* x) { __shared__ float s[64]; const int t = threadIdx.x; s[t] = x[t]; x[t] = s[63 - t]; }
#if 0
__global__ void gone( { }
#endif
class Timer { public: Timer() { cudaEventCreate(&start); } private: cudaEvent_t start; };
int main(int argc, char** argv) {
  vector<float> h(10);
  auto launch = [&](float* p) { scale<float, 4><<<dim3(1), 32, 0, 0>>>(p, 3); };
  CHECK(cudaDeviceSynchronize());
  R"(race<<<1, 64>>>)";  // race<int><<<1, 64>>>
}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "demo.cu"
    path.write_text(SOURCE)
    return path


def test_a_template_is_the_instantiation_that_is_named(file: Path) -> None:
    x = np.array([-1, 2, 3], np.float64)
    report = matmill.emulate(file, "scale<double, 2>", 1, 32, x, 3)
    assert x.tolist() == [0, 4, 6]
    assert report.ok
    assert report.launch.kernel == "scale<double, 2>"
    assert report.left_out == (
        "host code: main",
        "host headers: cuda_runtime.h, iostream, vector",
        "headers that were not found: opencv2/opencv.hpp",
    )
    assert report.by_line["demo.cu:10"].global_store_requests == 1
    y = np.array([-1, 2, 3], np.float32)
    matmill.emulate(str(file), "scale", (1, 1), (32,), y, np.int32(3)).raise_if()  # as its host code launches it
    assert y.tolist() == [0, 8, 12]


class _Span(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64), ("size", ctypes.c_int))


def test_structs_of_every_form(file: Path) -> None:
    data, out = np.arange(5, dtype=np.float32), np.zeros(1, np.float32)
    one = np.ones(1, np.float32)
    one.flags.writeable = False
    report = matmill.emulate(file, "sums::all", 1, 1, (data, np.int32(5)), out, one)
    assert out[0] == 11
    span = report.launch.args[0]
    assert isinstance(span, Struct)
    address, size = np.frombuffer(span.data, "u8,i4,i4")[0].item()[:2]
    assert size == 5
    record = np.array((0, 0), np.dtype([("data", "u8"), ("size", "i4")], align=True))
    for empty in (record, record[()], _Span(0, 0), (None, np.int32(0))):
        matmill.emulate(file, "all", 1, 1, empty, out, None)
        assert out[0] == 0
    assert address % 512 == 0


def test_hazards_are_reported_raised_and_suppressed(file: Path, tmp_path: Path) -> None:
    x = np.arange(64, dtype=np.float32)
    report = matmill.emulate(file, "race", 1, 64, x)
    assert not report.ok
    assert [hazard.kind for hazard in report.hazards] == ["race"]
    assert "demo.cu:15  __global__ void race" in str(report)
    with pytest.raises(HazardError, match=r"kernel race: got 1 error; wanted no errors(?s:.*)demo.cu:15") as caught:
        report.raise_if()
    assert isinstance(caught.value, AssertionError)
    assert caught.value.report is report
    assert report.raise_if("warning", "deadlock") is report
    with pytest.raises(HazardError):
        report.raise_if("race")
    with pytest.raises(UnknownNameError, match="Did you mean 'race'"):
        report.raise_if("races")
    accepted = tmp_path / "accepted.txt"
    accepted.write_text("# known\nrace demo.cu:15 a planted one\nrace other.cu:15 elsewhere\n")
    calm = matmill.emulate(file, "race", 1, 64, x, suppressions=accepted)
    assert calm.ok
    assert [(hazard.kind, reason) for hazard, reason in calm.suppressed] == [("race", "a planted one")]
    assert matmill.emulate(file, "race", 1, 64, x, races=False).ok
    for text, words in (
        ("race demo.cu:15\n", "Write down why"),
        ("rays demo.cu:15 x", "wanted one of"),
        (None, "No such"),
    ):
        if text is not None:
            accepted.write_text(text)
        with pytest.raises((ArgumentError, UnknownNameError), match=words):
            matmill.emulate(file, "race", 1, 64, x, suppressions=accepted if text else tmp_path / "gone")


def test_an_empty_array_may_be_given_twice() -> None:
    source = "__global__ void k(int* x, int* y, int n) { for (int i = 0; i < n; ++i) x[i] = y[i]; }"
    empty = np.zeros(0, np.int32)
    assert matmill.emulate(source, "k", 1, 1, empty, empty, 0).ok


def test_strict_counts_notes_and_faults_end_a_launch() -> None:
    same = "__global__ void k(int* x) { *x = 1; if (threadIdx.x > 40) x[threadIdx.x] = 2; }"
    x = np.zeros(64, np.int32)
    assert matmill.emulate(same, None, 1, 64, x).ok
    assert not matmill.emulate(same, None, 1, 64, x, strict=True).ok
    report = matmill.emulate(same, "k", 1, 64, x[:50])
    assert report.faulted
    assert "behind the end of x (200 B)" in report.hazards[-1].message
    assert report.counters.global_store_requests == 2
    never = np.full(64, -1, np.int32)
    assert matmill.emulate("__global__ void k(int* x) { x[0] += x[1]; }", "k", 1, 1, never).ok
    fresh = np.full(64, -1, np.int32)
    read = matmill.emulate("__global__ void k(int* x) { x[0] += x[1]; }", "k", 1, 1, fresh, initcheck=True)
    assert {hazard.kind for hazard in read.hazards} == {"uninitialised-global"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "arguments: got 0 values; wanted 4: const float* x, int n, double a, half h"),
        ((np.ones(4), 4, 1.0, 0.5), "x: got an array of float64; wanted float32, for const float"),
        ((3, 4, 1.0, 0.5), "x: got 3; wanted an array for const float"),
        ((np.ones(4, np.float32), np.ones(4), 1.0, 0.5), "n: got an array of float64; wanted a value for int n"),
        ((np.ones(4, np.float32), 4.5, 1.0, 0.5), "n: got 4.5; wanted a whole number of 32 bits"),
        ((np.ones(4, np.float32), 1 << 40, 1.0, 0.5), "n: got 1099511627776"),
        ((np.ones(4, np.float32), np.float32(4), 1.0, 0.5), "n: got float32 4.0; wanted 4 bytes for int n"),
        ((np.ones(4, np.float32), 4, np.float32(1), 0.5), "a: got float32 1.0; wanted 8 bytes for double a"),
        ((np.ones(4, np.float32), 4, 1.0, (1,)), "h.0: got 1; wanted a NumPy scalar"),
    ],
)
def test_arguments_that_do_not_fit(args: tuple[Any, ...], words: str) -> None:
    pytest.importorskip("nvidia.cu13", reason="the headers of CUDA are not installed")
    source = "#include <cuda_fp16.h>\n__global__ void k(const float* x, int n, double a, half h) {}"
    with pytest.raises(ArgumentError) as caught:
        matmill.emulate(source, "k", 1, 1, *args)
    assert words in str(caught.value)


def test_ptx_and_sources_that_are_refused(file: Path, tmp_path: Path) -> None:
    ptx = matmill.emulate(file, "race", 1, 64, np.zeros(64, np.float32)).ptx
    path = tmp_path / "race.ptx"
    path.write_text(ptx)
    for source in (ptx, path, str(path)):
        report = matmill.emulate(source, None, 1, 64, np.zeros(64, np.float32))
        assert report.launch.kernel == "_Z4racePf"
        assert any(line.strip().startswith("st.shared.f32") for line in report.source.values())
    wrong: list[tuple[tuple[Any, Any], str]] = [
        ((file, None), "entry: got nothing; wanted one of scale<float, 4>, sums::all, race"),
        ((file, "scald"), "entry: got 'scald'"),
        ((ptx, "k"), "entry: got 'k'; wanted one of _Z4racePf"),
        ((tmp_path / "gone.cu", "k"), "gone.cu': No such file"),
        (("int main() { return 0; }", None), "wanted a file with a kernel"),
        (("template <class T> __global__ void t(T* x) {}", "t"), "wanted one of t<T>"),
    ]
    for (text, entry), words in wrong:
        with pytest.raises(ArgumentError) as caught:
            matmill.emulate(text, entry, 1, 1)
        assert words in str(caught.value)
    with pytest.raises(CompileError, match='identifier "y" is undefined'):
        matmill.emulate("__global__ void k(int* x) { *x = y; }", "k", 1, 1, None)
    with pytest.raises(ArgumentError, match="grid: got"):
        matmill.emulate(file, "race", (1, 1, 1, 1), 1, np.zeros(64, np.float32))


def test_options_headers_of_the_user_s_and_unmarked_functions(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "add.cuh").write_text('#pragma once\n#include "one.h"\nint add(int a) { return a + ONE; }\n')
    (tmp_path / "lib" / "one.h").write_text(
        '#include <cstdio>\nstatic void say() { std::printf(""); }\n#define ONE 1\n'
    )
    source = '#include "add.cuh"\n__global__ void k(int* x) { *x = add(N) + int(sizeof(uint64_t)) + (INT_MAX > 0); }\n'
    x = np.zeros(1, np.int32)
    report = matmill.emulate(source, "k", 1, 1, x, options=["-DN=30", "-std=c++20"], include=[tmp_path / "lib"])
    assert x[0] == 40
    assert report.source["add.cuh:3"] == "int add(int a) { return a + ONE; }"
    assert "host code: say" in report.left_out


#: Variables of the module, a type of the file's own, and a kernel that the preprocessor leaves out.
VARIABLES = """#include <cuda_bf16.h>
typedef __nv_bfloat16 real;
namespace taps { static __constant__ float filter[8]; }
__device__ int calls = 5;
__global__ void filtered(float* x) { x[threadIdx.x] *= taps::filter[threadIdx.x]; atomicAdd(&calls, 1); }
__global__ void converted(const real* x, float* y) { y[threadIdx.x] = float(x[threadIdx.x]); }
#ifdef WITH_CUDNN
#else
__global__ void plain(float2* x) { x[threadIdx.x].y = 1; }
#endif
"""


def test_variables_of_the_module_are_set_and_read_by_name() -> None:
    x, calls = np.ones(4, np.float32), np.array([10], np.int32)
    for _ in range(2):
        symbols = {"filter": np.arange(4, dtype=np.float32), "calls": calls}
        assert matmill.emulate(VARIABLES, "filtered", 1, 4, x, symbols=symbols).ok
    assert x.tolist() == [0, 1, 4, 9]
    assert calls.tolist() == [18]
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"taps": calls}, "symbols: got 'taps'; wanted one of calls, taps::filter"),
        ({"calls": np.zeros(2, np.int32)}, r"int32\[2\], 8 bytes; wanted at most the 4 bytes of calls"),
        ({"calls": 3}, r"symbols\['calls'\]: got 3; wanted an array or a NumPy scalar .* np.int32\(3\)"),
    )
    for given, words in wrong:
        with pytest.raises(ArgumentError, match=words):
            matmill.emulate(VARIABLES, "filtered", 1, 4, x, symbols=given)


def test_element_types_are_known_behind_names_of_the_file_s_own() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    words = "x: got an array of float32; wanted bfloat16, for const real. x, which is const __nv_bfloat16."
    with pytest.raises(ArgumentError, match=words):
        matmill.emulate(VARIABLES, "converted", 1, 4, x, y)
    assert matmill.emulate(VARIABLES, "converted", 1, 4, x.astype(ml_dtypes.bfloat16), y).ok
    assert (x == y).all()
    pairs = np.zeros(4, np.complex64)
    assert matmill.emulate(VARIABLES, "plain", 1, 4, pairs).ok
    assert (pairs == 1j).all()


def test_a_kernel_that_the_preprocessor_leaves_out_is_said_to_be() -> None:
    with pytest.raises(ArgumentError, match=r"'plain', which the preprocessor leaves out.*#ifdef WITH_CUDNN, #else"):
        matmill.emulate(VARIABLES, "plain", 1, 4, np.zeros(4, np.complex64), options=["-DWITH_CUDNN"])


def test_pointers_into_arrays_and_structs_of_vectors() -> None:
    text = """struct Range { int2 ends; };
    __global__ void steps(const float* x, float* y, Range r, int2 step) {
      int i = r.ends.x + threadIdx.x * step.x;
      if (i < r.ends.y) y[i] = x[i] - x[i - 1];
    }"""
    x, y = np.arange(6, dtype=np.float32) ** 2, np.zeros(8, np.float32)
    ends, step = (np.int32(0), np.int32(5)), (np.int32(1), np.int32(0))
    assert matmill.emulate(text, None, 1, 8, matmill.at(x, 1), matmill.at(y.reshape(2, 4), (0, 2)), ends, step).ok
    assert y.tolist() == [0, 0, 1, 3, 5, 7, 9, 0]
    report = matmill.emulate(text, None, 1, 8, x[1:], y, ends, step)
    assert [hazard.kind for hazard in report.hazards] == ["out-of-bounds"]
    with pytest.raises(ArgumentError, match=r"step: got a struct of 4 bytes.*8 bytes, aligned to 8, for int2 step"):
        matmill.emulate(text, None, 1, 8, x, y, ends, (np.int32(1),))
    with pytest.raises(ArgumentError, match=r"at: got the index \(1, 2\) of an array of 1 dimensions"):
        matmill.emulate(text, None, 1, 8, matmill.at(x, (1, 2)), y, ends, step)


def test_an_array_that_is_given_twice_has_one_copy_in_other_orders() -> None:
    text = (
        "__global__ void up(const int* x, int* y) { int v = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = v + 1; }"
    )
    run = Emulate(Path(), {"schedules": 1, "late_copies": False, "suppressions": None})
    x = np.zeros(64, np.int32)
    assert run(text, None, 1, 64, x, matmill.at(x, 0)).hazards == ()
    assert (x == 1).all()


def test_the_read_before_a_compare_and_swap_is_no_race() -> None:
    """The loop that the CUDA C++ programming guide shows for atomics that a GPU lacks."""
    text = """__global__ void most(const float* x, float* y, int peek) {
      int* word = (int*)y;
      int old = *word, seen;
      do { seen = old; old = atomicCAS(word, seen, __float_as_int(fmaxf(x[threadIdx.x], __int_as_float(seen)))); }
      while (seen != old);
      if (peek && threadIdx.x == 0) y[1] = y[0];
    }"""
    x, y = np.arange(64, dtype=np.float32), np.zeros(2, np.float32)
    assert matmill.emulate(text, None, 1, 64, x, y, 0, strict=True).ok
    assert y[0] == 63
    report = matmill.emulate(text, None, 1, 64, x, y, 1)
    assert [hazard.kind for hazard in report.hazards] == ["race"]


def test_arguments_of_a_template_that_do_not_fit_are_said_beside_its_parameters() -> None:
    text = "template <typename T, int N> __global__ void fill(T* x) { x[0] = N; }"
    for entry, words in (
        ("fill", r"got 'fill'; wanted one of fill<T, N>"),
        ("fill<float>", r"got 'fill<float>'; wanted fill<T, N>. The compiler says: cannot determine which instance"),
        ("fill<floaty, 2>", r"got 'fill<floaty, 2>'; wanted fill<T, N>. .* identifier .floaty. is undefined"),
    ):
        with pytest.raises(ArgumentError, match=words):
            matmill.emulate(text, entry, 1, 1, np.zeros(1, np.float32))


def test_structs_of_the_host_s_threads_have_their_size() -> None:
    text = """#include <pthread.h>
    typedef pthread_t Worker;
    struct Pool { pthread_mutex_t lock; Worker worker; int size; };
    __global__ void size(Pool pool, int* x) { *x = pool.size; }"""
    pool = np.array((bytes(40), 0, 7), np.dtype([("lock", "V40"), ("worker", "u8"), ("size", "i4")], align=True))
    x = np.zeros(1, np.int32)
    assert matmill.emulate(text, None, 1, 1, pool, x).ok
    assert x[0] == 7


def test_a_header_is_judged_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "memory.h").write_text("__device__ inline float twice(float x) { return 2 * x; }\n")
    source = """#include <cuda/atomic>
    #include <cuda/std/tuple>
    #include <cuda/cmath>
    #include <memory>
    #include <openmpi/mpi.h>
    #include "kernels/memory.h"
    __global__ void k(float* y, int* n) {
      cuda::atomic_ref<int, cuda::thread_scope_device>(*n).fetch_add(1);
      y[threadIdx.x] = twice(cuda::std::get<1>(cuda::std::make_tuple(1, 2.0f))) + cuda::ceil_div(5, 2);
    }"""
    (tmp_path / "k.cu").write_text(source)
    y, n = np.zeros(32, np.float32), np.zeros(1, np.int32)
    report = matmill.emulate(tmp_path / "k.cu", "k", 1, 32, y, n)
    assert report.ok
    assert report.left_out == ("host headers: memory, openmpi/mpi.h",)
    assert (y == 7).all()
    assert n[0] == 32
    (tmp_path / "k.cu").write_text(source.replace("twice", "thrice"))
    with pytest.raises(CompileError, match=r"(?s)thrice.*left out as host headers: memory, openmpi/mpi.h\."):
        matmill.emulate(tmp_path / "k.cu", "k", 1, 32, y, n)


def test_the_runtime_s_functions_of_dependent_launches() -> None:
    source = """#include <cuda_runtime.h>
    __global__ void k(const float* x, float* y) {
      cudaTriggerProgrammaticLaunchCompletion();
      cudaGridDependencySynchronize();
      y[threadIdx.x] = x[threadIdx.x];
    }"""
    x, y = np.ones(32, np.float32), np.zeros(32, np.float32)
    assert matmill.emulate(source, "k", 1, 32, x, y, pdl=True).hazards == ()
    assert matmill.emulate(source, "k", 1, 32, x, y, target="sm_80").hazards == ()
    late = source.replace("cudaGridDependencySynchronize();", "", 1)
    report = matmill.emulate(late, "k", 1, 32, x, y, pdl=True)
    assert {hazard.kind for hazard in report.hazards} == {"dependent-launch"}


def test_arguments_by_name() -> None:
    x = np.ones(3)
    assert matmill.emulate("__global__ void k(double* x, int n) { *x += n; }", "k", 1, 1, n=2, x=x).ok
    assert x[0] == 3
    with pytest.raises(ArgumentError, match=r"unexpected keyword argument 'm'; wanted k\(x, n\)\."):
        matmill.emulate("__global__ void k(double* x, int n) { *x += n; }", "k", 1, 1, x, 2, m=2)


def test_a_table_of_arrays() -> None:
    table = np.empty(2, object)
    table[:] = [np.full(8, 1.0), np.full(8, 2.0)]
    source = "__global__ void k(double** t, double* o) { o[threadIdx.x] = t[1][threadIdx.x]; t[0][threadIdx.x] = 5; }"
    out = np.zeros(8)
    assert matmill.emulate(source, "k", 1, 8, table, out).ok
    assert out.tolist() == [2.0] * 8
    assert table[0].tolist() == [5.0] * 8
    report = matmill.emulate(source, "k", 1, 9, table, np.zeros(9))
    assert "behind the end of t[1] (64 B)" in report.hazards[0].message


def test_arrays_of_eight_bit_floats() -> None:
    x = np.arange(4).astype(ml_dtypes.float8_e5m2)[::-1]
    assert matmill.emulate("__global__ void k(unsigned char* x) { x[0] = x[-1]; }", "k", 1, 1, x.view(np.uint8)).ok
    assert x.astype(float).tolist() == [2, 2, 1, 0]
    empty = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x) { ret; }"
    assert matmill.emulate(empty, None, 1, 1, x).ok


def test_instructions_that_the_target_lacks_are_refused() -> None:
    source = (
        "__global__ void fill(int* x) { unsigned at = threadIdx.x; asm volatile("
        '"{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 1;}" ::"r"(at)); x[0] = 1; }'
    )
    with pytest.raises(CompileError, match=r"(?s)does not assemble for sm_80.*requires .target sm_90"):
        matmill.emulate(source, "fill", 1, 32, np.zeros(1, np.int32), target="sm_80")
