"""What real code asks of the runtime and of the compiler: printf, assert, malloc, grid.sync, wmma, double sin, hexp."""

from __future__ import annotations

import numpy as np
import pytest

import matmill
from matmill.errors import EmulationError

pytest.importorskip("nvidia.cu13", reason="the headers of CUDA are not installed")

WMMA = """#include <mma.h>
using namespace nvcuda;
template <typename In, typename Out, int M, int N, int K, typename Stored, typename LA, typename LB>
__global__ void product(const Stored* a, const Stored* b, Out* c, int lda, int ldb, int ldc, int rows) {
  wmma::fragment<wmma::matrix_a, M, N, K, In, LA> x;
  wmma::fragment<wmma::matrix_b, M, N, K, In, LB> y;
  wmma::fragment<wmma::accumulator, M, N, K, Out> z;
  const wmma::layout_t layout = rows ? wmma::mem_row_major : wmma::mem_col_major;
  wmma::load_matrix_sync(x, (const Stored*)a, lda);
  wmma::load_matrix_sync(y, (const Stored*)b, ldb);
  wmma::load_matrix_sync(z, c, ldc, layout);
  wmma::mma_sync(z, x, y, z);
  for (int i = 0; i < z.num_elements; ++i) z.x[i] = z.x[i] + z.x[i];
  wmma::store_matrix_sync(c, z, ldc, layout);
}
"""
R, C = "wmma::row_major", "wmma::col_major"
SHAPES = [
    ("half", "float", (16, 16, 16), "half", np.float16, np.float32, R, C, 1),
    ("half", "half", (16, 16, 16), "half", np.float16, np.float16, C, R, 0),
    ("half", "float", (32, 8, 16), "half", np.float16, np.float32, R, R, 1),
    ("half", "float", (8, 32, 16), "half", np.float16, np.float32, C, C, 0),
    ("half", "half", (8, 32, 16), "half", np.float16, np.float16, R, R, 1),
    ("wmma::precision::tf32", "float", (16, 16, 8), "float", np.float32, np.float32, R, R, 1),
    ("signed char", "int", (16, 16, 16), "signed char", np.int8, np.int32, R, C, 1),
    ("unsigned char", "int", (32, 8, 16), "unsigned char", np.uint8, np.int32, C, R, 0),
    ("signed char", "int", (8, 32, 16), "signed char", np.int8, np.int32, R, C, 1),
    ("double", "double", (8, 8, 4), "double", np.float64, np.float64, R, C, 0),
]


def test_wmma_of_every_shape() -> None:
    rng = np.random.default_rng(1)
    for kind, out, (m, n, k), stored, dtype, result, la, lb, rows in SHAPES:
        a, b = (rng.integers(0, 4, shape).astype(dtype) for shape in ((m, k), (k, n)))
        c = rng.integers(0, 4, (m, n)).astype(result)
        padded = 16
        stored_a, stored_b = (
            np.zeros((x.shape[0], x.shape[1] + padded), dtype) for x in (a if la == R else a.T, b if lb == R else b.T)
        )
        stored_a[:, :-padded] = a if la == R else a.T
        stored_b[:, :-padded] = b if lb == R else b.T
        stored_c = np.array(c if rows else c.T, order="C")
        name = f"product<{kind}, {out}, {m}, {n}, {k}, {stored}, {la}, {lb}>"
        strides = (stored_a.shape[1], stored_b.shape[1], stored_c.shape[1])
        matmill.emulate(WMMA, name, 1, 32, stored_a, stored_b, stored_c, *strides, rows).raise_if()
        wide = a.astype(np.float64) @ b.astype(np.float64) + c
        assert ((stored_c if rows else stored_c.T) == 2 * wide).all(), name


GRID = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void turns(int* x, int n) {
  cg::grid_group grid = cg::this_grid();
  for (int step = 0; step < 3; ++step) {
    int y = x[(grid.thread_rank() + 33) % n];
    grid.sync();
    x[grid.thread_rank()] = y + 1;
    grid.sync();
  }
}
"""
TILES = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void sums(int* x) {
  __shared__ cg::block_tile_memory<128> scratch;
  auto tile = cg::tiled_partition<64>(cg::this_thread_block(scratch));
  int sum = cg::reduce(tile, x[threadIdx.x], cg::plus<int>());
  tile.sync();
  x[threadIdx.x] = sum;
}
"""
CALLS = """#include <cstdio>
#include <cassert>
#include <cuda_fp16.h>
__global__ void say(const char* word, const float* x) {
  const int t = threadIdx.x;
  if (t < 2) printf("%s %d/%u: %5.2f %-4s|%04x %c %lld %%\\n", "thread", t, 7u, x[t], word, 255, 'q', -5000000000ll);
}
__global__ void check(const int* x) { assert(x[threadIdx.x] > 0 && "positive"); }
__global__ void heap(int* x) {
  int* mine = (int*)malloc(4 * sizeof(int));
  for (int i = 0; i < 4; ++i) mine[i] = threadIdx.x + i;
  x[threadIdx.x] = mine[3];
  free(mine);
}
__global__ void functions(const double* x, double* y, const half* h, half* g) {
  y[threadIdx.x] = sin(x[threadIdx.x]);
  g[threadIdx.x] = hexp(h[threadIdx.x]);
}
__global__ void bits(unsigned* x) {
  unsigned a; asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(a) : "r"(x[0]), "r"(x[1]));
  unsigned b; asm("bmsk.wrap.b32 %0, %1, %2;" : "=r"(b) : "r"(x[0] + 32), "r"(x[1]));
  unsigned long long p; asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
  unsigned c; asm("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(c) : "l"(x), "l"(p));
  unsigned lo, hi;
  asm("{mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, %5;}" : "=r"(lo), "=r"(hi)
      : "r"(0xffffffffu), "r"(x[2]), "r"(0xfffffff0u), "r"(7u));
  x[3] = a; x[4] = b; x[5] = c; x[6] = lo; x[7] = hi;
}
"""


def test_tiles_of_several_warps_meet_in_shared_memory_that_the_system_keeps() -> None:
    x = np.arange(128, dtype=np.int32)
    report = matmill.emulate(TILES, "sums", 1, 128, x, schedule=1)
    assert report.ok
    assert (x.reshape(2, 64) == [[2016], [6112]]).all()


def test_printf_and_assert() -> None:
    x = np.array([1.5, 22.25], np.float32)
    report = matmill.emulate(CALLS, "say", 1, 32, np.frombuffer(b"ab\0", np.uint8), x)
    assert report.printed == (
        "thread 0/7:  1.50 ab  |00ff q -5000000000 %\nthread 1/7: 22.25 ab  |00ff q -5000000000 %\n"
    )
    assert report.ok
    positive = np.ones(32, np.int32)
    assert matmill.emulate(CALLS, "check", 1, 32, positive).ok
    positive[5] = 0
    report = matmill.emulate(CALLS, "check", 1, 32, positive)
    assert [hazard.kind for hazard in report.hazards] == ["assert"]
    assert report.hazards[0].where == "kernel.cu:8"
    assert "thread (5, 0, 0)" in report.hazards[0].message
    assert "assertion 'x[threadIdx.x] > 0 && \"positive\"' failed" in report.hazards[0].message


def test_grids_that_synchronize() -> None:
    n = 4 * 32
    x = np.arange(n, dtype=np.int32)
    report = matmill.emulate(GRID, "turns", 4, 32, x, n, cooperative=True)
    assert report.ok, str(report)
    assert (x == (np.arange(n) + 99) % n + 3).all()
    alone = matmill.emulate(GRID, "turns", 4, 32, x, n)
    assert not alone.ok


def test_heap_functions_and_bits() -> None:
    x = np.zeros(32, np.int32)
    matmill.emulate(CALLS, "heap", 1, 32, x).raise_if()
    assert (x == np.arange(32) + 3).all()
    angles = np.linspace(-1e6, 1e6, 32)
    sines, halves = np.zeros(32), np.linspace(-4, 4, 32).astype(np.float16)
    exponentials = np.zeros(32, np.float16)
    matmill.emulate(CALLS, "functions", 1, 32, angles, sines, halves, exponentials).raise_if()
    np.testing.assert_allclose(sines, np.sin(angles), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(exponentials, np.exp(halves.astype(np.float32)), rtol=2e-3)
    words = np.array([4, 31, 0x10, 0, 0, 0, 0, 0], np.uint32)
    matmill.emulate(CALLS, "bits", 1, 1, words).raise_if()
    whole = 0xFFFFFFFF * 0x10
    low = (whole & 0xFFFFFFFF) + 0xFFFFFFF0
    assert words[3:].tolist() == [0xFFFFFFF0, 0xFFFFFFF0, 4, low & 0xFFFFFFFF, (whole >> 32) + 7 + (low >> 32)]


def test_what_is_not_emulated_is_refused() -> None:
    source = 'extern "C" __global__ void k() { asm("sured.b.add.1d.u32.trap [%0, {%1}], %1;" :: "l"(1ll), "r"(0)); }'
    with pytest.raises(EmulationError, match="reductions in surfaces are not emulated"):
        matmill.emulate(source, "k", 1, 1)


NAMES = """#include <cuda_fp16.h>
#define TILE 32
template <typename T, int N> __global__ void scale(T* x, const half* h, T* y) {
  constexpr int pitch = N + 1;
  __shared__ T tile[TILE][pitch];
  const int i = threadIdx.y * 32 + threadIdx.x;
  tile[threadIdx.y][threadIdx.x] = x[i];
  y[i] = tile[threadIdx.x][threadIdx.y];
  if (i == 70) y[i] = __half2float(__ldg(h + 3));
}
"""


def test_messages_speak_of_elements_and_the_user_s_own_lines() -> None:
    x, y, h = np.ones((32, 32), np.float32), np.ones((31, 32), np.float32), np.ones(2, np.float16)
    report = matmill.emulate(NAMES, "scale<float, 32>", 1, (32, 32), x, h, y)
    race, beyond = report.hazards
    assert "scale<float, 32>::tile[1][0] in shared memory: write by thread" in str(race)
    assert "thread (0, 31, 0) of block (0, 0, 0) writes 4 bytes at 0 B behind the end of y (3968 B)" in str(beyond)
    whole = np.ones((32, 32), np.float32)
    inlined = matmill.emulate(NAMES, "scale<float, 32>", 1, (32, 32), x, h, whole).hazards[-1]
    assert inlined.where == "kernel.cu:9"
    assert "2 B behind the end of h (4 B)" in inlined.message
    whole.flags.writeable = False
    kept = matmill.emulate(NAMES, "scale<float, 32>", 1, (32, 32), x, np.ones(8, np.float16), whole)
    assert "writes 4 bytes at y[0][0], which is read-only" in kept.hazards[-1].message
