"""Products of integers of 4 bits and of bits by wmma; wmma with C and D of different types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill

Array = NDArray[Any]


def drawn(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> tuple[Array, Array]:
    """Return random elements, as bit patterns and as numbers."""
    patterns = rng.integers(0, 2 if kind == "b1" else 16, shape).astype(np.uint8)
    numbers = patterns.astype(np.int64)
    return patterns, np.where(numbers > 7, numbers - 16, numbers) if kind == "s4" else numbers


SOURCE = """#include <mma.h>
using namespace nvcuda;
namespace small = wmma::experimental;
template <int K, typename T> __device__ void load(wmma::fragment<wmma::matrix_a, 8, 8, K, T, wmma::row_major>& a,
    wmma::fragment<wmma::matrix_b, 8, 8, K, T, wmma::col_major>& b, const int* x, const int* y, int pitch) {
  wmma::load_matrix_sync(a, x, pitch); wmma::load_matrix_sync(b, y, pitch); }
__global__ void nibbles(const int* x, const int* y, int* out, int pitch) {
  wmma::fragment<wmma::matrix_a, 8, 8, 32, small::precision::s4, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 8, 8, 32, small::precision::s4, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 8, 8, 32, int> c;
  load(a, b, x, y, pitch); wmma::fill_fragment(c, 3); wmma::mma_sync(c, a, b, c);
  wmma::store_matrix_sync(out, c, 8, wmma::mem_row_major);
}
__global__ void bits(const int* x, const int* y, int* out, int pitch) {
  wmma::fragment<wmma::matrix_a, 8, 8, 128, small::precision::b1, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 8, 8, 128, small::precision::b1, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 8, 8, 128, int> c;
  load(a, b, x, y, pitch); wmma::fill_fragment(c, 3); wmma::bmma_sync(c, a, b, c);
  wmma::store_matrix_sync(out, c, 8, wmma::mem_col_major);
  wmma::bmma_sync(c, a, b, c, small::bmmaBitOpAND);
  wmma::store_matrix_sync(out + 64, c, 8, wmma::mem_row_major);
}
template <typename C, typename D, int M, int N>
__global__ void mixed(const half* x, const half* y, const C* z, D* out) {
  wmma::fragment<wmma::matrix_a, M, N, 16, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, M, N, 16, half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, M, N, 16, C> c;
  wmma::fragment<wmma::accumulator, M, N, 16, D> d;
  wmma::load_matrix_sync(a, x, 16); wmma::load_matrix_sync(b, y, N);
  wmma::load_matrix_sync(c, z, N, wmma::mem_row_major);
  wmma::mma_sync(d, a, b, c);
  wmma::store_matrix_sync(out, d, N, wmma::mem_row_major);
}
"""


@pytest.mark.parametrize(("entry", "bits"), [("nibbles", 4), ("bits", 1)])
def test_wmma_of_parts_of_bytes(entry: str, bits: int) -> None:
    pytest.importorskip("nvidia.cu13", reason="the headers of CUDA are not installed")
    k, kind = 128 // bits, "s4" if bits == 4 else "b1"
    rng = np.random.default_rng(bits)
    (left, x), (right, y) = drawn(rng, (8, k), kind), drawn(rng, (k, 8), kind)
    # Rows of twice the length, of which the second half must not be read.
    stored = []
    for patterns in (left, right.T):
        padded = np.concatenate([patterns, rng.integers(0, 1 << bits, patterns.shape).astype(np.uint8)], axis=1)
        spread = padded[:, :, None] >> np.arange(bits, dtype=np.uint8) & 1
        stored.append(np.packbits(spread.reshape(8, -1), axis=1, bitorder="little").view(np.int32))
    out = np.zeros((2, 8, 8), np.int32)
    matmill.emulate(SOURCE, entry, 1, 32, *stored, out, 2 * k).raise_if()
    if bits == 4:
        assert (out[0] == x @ y + 3).all()
    else:
        differ = (x[:, :, None] != y[None]).sum(axis=1) + 3
        assert (differ == out[0].T).all()
        assert (out[1] == differ + x @ y).all()


@pytest.mark.parametrize(
    ("c", "d", "m", "n"), [("half", "float", 16, 16), ("float", "half", 32, 8), ("half", "float", 8, 32)]
)
def test_wmma_with_sums_of_another_type(c: str, d: str, m: int, n: int) -> None:
    pytest.importorskip("nvidia.cu13", reason="the headers of CUDA are not installed")
    types = {"half": np.float16, "float": np.float32}
    rng = np.random.default_rng(m)
    x, y = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((m, 16), (16, n)))
    z = rng.uniform(-1, 1, (m, n)).astype(types[c])
    out = np.zeros((m, n), types[d])
    matmill.emulate(SOURCE, f"mixed<{c}, {d}, {m}, {n}>", 1, 32, x, y, z, out).raise_if()
    exact = x.astype(np.float64) @ y.astype(np.float64) + z
    np.testing.assert_allclose(out, exact, rtol=2e-3 if d == "half" else 2e-6, atol=1e-4)
