"""Products of views whose elements start anywhere, and of extents that are cut into pieces."""

from __future__ import annotations

import numpy as np
import pytest

import matmill
from matmill.arrays import inspect
from matmill.dtypes import ALL
from matmill.lowering import gemm as lowering
from matmill.lowering import lower_gemm
from support.views import check, strided


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
