"""Products of views whose elements start anywhere: overlapping, reversed, broadcast, off 16 bytes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import matmill
from matmill.arrays import inspect
from matmill.dtypes import ALL
from matmill.lowering import gemm as lowering
from matmill.lowering import lower_gemm

SIDES = st.sampled_from([1, 2, 3, 4, 8, 16, 17, 33, 64])
TYPES = st.sampled_from([ALL[name].numpy for name in ("float32", "float16", "bfloat16", "float64")])


def strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """A view of small integers with these strides in elements, whose memory starts ``offset`` elements off 16 bytes."""
    reach = [stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True)]
    below = -sum(min(0, step) for step in reach)
    count = below + sum(max(0, step) for step in reach) + 1
    raw = np.empty(count * dtype.itemsize + 16 + offset * dtype.itemsize, np.uint8)
    first = -raw.ctypes.data % 16 + offset * dtype.itemsize
    memory = raw[first : first + count * dtype.itemsize].view(dtype)
    memory[:] = np.random.default_rng(prod(shape)).integers(-3, 4, count)
    return as_strided(memory[below:], shape, [stride * dtype.itemsize for stride in strides])


def check(a: np.ndarray, b: np.ndarray) -> None:
    """Compare the emulator's product, of small integers and so exact, with float64's."""
    got = matmill.matmul(a, b, executor="emulator")
    wanted = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Views of a shape: packed but for the batch, with both strides of one element, or of any small strides."""
    *_, rows, columns = shape
    step = st.sampled_from([0, 1, -1, 2, 3, 5, 8, columns, columns + 1])
    row, column = draw(st.sampled_from([(columns, 1), (1, rows), (1, 1), (1, -1)]) | st.tuples(step, step))
    batch = draw(step | st.integers(rows * columns, rows * columns + 8))
    offset = draw(st.integers(0, 15 // dtype.itemsize))
    return strided(shape, (batch, row, column)[-len(shape) :], dtype, offset)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), TYPES, st.tuples(SIDES, SIDES, SIDES), st.sampled_from([(), (2,), (3,), (5,)]), st.booleans())
def test_any_view(
    data: st.DataObject, dtype: np.dtype, sides: tuple[int, int, int], batch: tuple[int, ...], shared: bool
) -> None:
    m, n, k = sides
    a = data.draw(views((*batch, m, k), dtype))
    check(a, data.draw(views((*(() if shared else batch), k, n), dtype)))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("windows", [(185, 16, 3), (64, 64, 64), (130, 33, 17), (300, 128, 136)])
def test_sliding_windows(name: str, windows: tuple[int, int, int]) -> None:
    """Both strides of a sliding window are one element: rows start anywhere though each is contiguous."""
    rows, width, n = windows
    x = np.random.default_rng(rows).integers(-3, 4, rows + width - 1).astype(ALL[name].numpy)
    a = sliding_window_view(x, width)
    check(a, np.ones((width, n), x.dtype))
    check(a[:, ::-1], np.ones((width, n), x.dtype))
    check(np.ones((n, rows), x.dtype), a)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_gram_of_sliding_windows(name: str) -> None:
    x = np.random.default_rng(7).integers(-3, 4, 200).astype(ALL[name].numpy)
    a = sliding_window_view(x, 72)
    check(a, a.T)


@pytest.mark.parametrize("gap", range(8))
@pytest.mark.parametrize("dtype", [ALL["float32"].numpy, ALL["float16"].numpy])
def test_packed_products_at_any_distance(gap: int, dtype: np.dtype) -> None:
    """Packed products of a batch start on 16 bytes, the first one, and off them, the next ones."""
    a = strided((2, 4, 8), (32 + gap, 8, 1), dtype)
    check(a, np.ones((2, 8, 2), dtype))
    b = strided((3, 8, 4), (32 + gap, 4, 1), dtype)
    check(np.ones((3, 2, 8), dtype), b)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut products at extents that the emulator computes in no time."""
    monkeypatch.setattr(lowering, "_LONGEST", 128)
    monkeypatch.setattr(lowering, "_LEAST_PIECE", 64)
    monkeypatch.setattr(lowering, "_MOST_REPACKED", 2**13)
    monkeypatch.setattr(lowering, "MOST_BATCHES", 16)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_long_extents_are_cut(name: str, transposed: tuple[bool, bool]) -> None:
    m, n, k = 300, 199, 21
    dtype = ALL[name].numpy
    first, second = transposed
    a = strided((m, k), (1, m + 1) if first else (k, 1), dtype, 1)
    b = strided((k, n), (1, k) if second else (n + 1, 1), dtype)
    stages = lower_gemm(inspect(a, "a"), inspect(b, "b"), None, inspect(np.empty((m, n), dtype), "d"))
    assert sum(len(stage.offsets) for stage in stages) >= 6
    assert max(max(stage.problem.m, stage.problem.n) for stage in stages) <= 128
    check(a, b)


@pytest.mark.usefixtures("small_pieces")
def test_a_sum_with_c_and_a_bias_is_cut() -> None:
    """C moves with D. A row bias belongs to columns, so that rows alone are cut."""
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((300, 9), (9, 150), (300, 150)))
    bias = rng.integers(-3, 4, 150).astype(np.float32)
    got = matmill.matmul(a, b, c=c, beta=2.0, bias=bias, executor="emulator")
    np.testing.assert_array_equal(got, a @ b + 2 * c + bias)
    got = matmill.matmul(a, b, bias=c[:, :1], executor="emulator")
    np.testing.assert_array_equal(got, a @ b + c[:, :1])


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("sizes", [(3, 2, 5), (40, 24, 100)])
def test_long_batches(name: str, sizes: tuple[int, int, int]) -> None:
    """Batches that a grid's second dimension does not count: whole by a persistent kernel, or in runs."""
    m, n, k = sizes
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-3, 4, shape).astype(ALL[name].numpy) for shape in ((37, m, k), (37, k, n)))
    check(a, b)
    whole = lower_gemm(inspect(a, "a"), inspect(b, "b"), None, inspect(np.empty((37, m, n), a.dtype), "d"))
    runs = [run for stage in whole for run in lowering.split_batch(stage)]
    starts = [(run.problem.batch, first) for run in runs for first, *_ in run.offsets]
    assert sum(batch for batch, _ in starts) == 37
    assert max(batch for batch, _ in starts) <= 16
    assert all(first % (m * k * a.itemsize) == 0 for _, first in starts)
    assert all(first % (run.problem.base_align or 1) == 0 for run in runs for first, *_ in run.offsets)
