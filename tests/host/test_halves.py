"""Products of the hgemm ladder, and a check that right sums pass and wrong ones do not, whatever they are kept in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.arch import get
from matmill.dtypes import BF16, F16, DType
from matmill.ladders.hgemm import subject as hgemm
from matmill.ladders.hgemm.rungs import HGEMM, ON_WGMMA
from matmill.ladders.hgemm.subject import HALVES, MATRIX, HalfInputs, half_product

Array = NDArray[Any]


def inputs(m: int, n: int, k: int, dtype: DType = F16) -> HalfInputs:
    return HalfInputs.random(half_product(m, n, k, dtype), 20)


def wide(made: HalfInputs, first: int = 0) -> Array:
    """Return the product with float32 sums, of the terms from ``first`` on."""
    a, b = made.a[:, first:].astype(np.float32), made.b[first:].astype(np.float32)
    return (a @ b).astype(made.problem.dtype.numpy)


def narrow(made: HalfInputs, step: int = 8) -> Array:
    """Return the product with float16 sums, rounded after so many terms: what mma.m16n8k8 does with 8."""
    a, b = made.a.astype(np.float32), made.b.astype(np.float32)
    total = np.zeros((made.problem.m, made.problem.n), np.float16)
    for start in range(0, made.problem.k, step):
        part = slice(start, start + step)
        total = (total.astype(np.float32) + a[:, part] @ b[part]).astype(np.float16)
    return total


def cut_off(made: HalfInputs) -> Array:
    """Return the product with float32 sums that are cut off, not rounded, after every 8 terms, as tensor cores do."""
    a, b = made.a.astype(np.float32), made.b.astype(np.float32)
    total = np.zeros((made.problem.m, made.problem.n), np.float32)
    for start in range(0, made.problem.k, 8):
        part = slice(start, start + 8)
        exact = total.astype(np.float64) + a[:, part] @ b[part]
        total = exact.astype(np.float32)
        total = np.where(np.abs(total) > np.abs(exact), np.nextafter(total, np.float32(0)), total)
    return total.astype(made.problem.dtype.numpy)


@pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("size", [64, 100, 133, 1])
def test_alignments_are_true_of_the_arrays(size: int, dtype: DType) -> None:
    problem = half_product(3, size, 2 * size, dtype)
    row = 2 * size * dtype.itemsize
    assert row % problem.a_align == 0
    assert problem.a_align == 16 or row % (2 * problem.a_align)
    assert size == 1 or (size * dtype.itemsize) % problem.b_align == 0
    assert problem.b_align == problem.d_align or size == 1
    assert hgemm.restored(hgemm.described(problem)) == problem


@pytest.mark.parametrize("dtype", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("k", [1, 64, 1000, 8192])
def test_right_sums_pass(k: int, dtype: DType) -> None:
    made = inputs(300, 130, k, dtype)
    for result in (wide(made), cut_off(made)):
        assert made.check(result).ok, made.check(result)
    if dtype is F16:
        assert made.check(narrow(made), acc16=True).ok


@pytest.mark.parametrize("k", [1000, 8192])
def test_sums_in_float16_do_not_pass_for_sums_in_float32(k: int) -> None:
    result = inputs(200, 100, k)
    assert result.check(narrow(result)).error_ratio > 2


def test_sums_rounded_too_often_do_not_pass_where_that_shows() -> None:
    result = inputs(200, 200, 8192)
    every = narrow(result, 1)
    assert not result.check(every).ok
    assert result.check(every, acc16=True).error_ratio > 2 * result.check(narrow(result), acc16=True).error_ratio


@pytest.mark.parametrize("acc16", [False, True])
@pytest.mark.parametrize("k", [64, 1024, 8192, 16384])
def test_a_kernel_that_computes_nothing_or_half_does_not_pass(k: int, acc16: bool) -> None:
    result = inputs(70, 300, k)
    right = wide(result)
    swapped = right.copy()
    swapped[:8, :16] = np.roll(right[:8, :16], 8, axis=1)
    wrongs = {
        "nothing": np.zeros_like(right),
        "half of k": wide(result, k // 2),
        "two fragments swapped": swapped,
        "nothing in one column": np.where(np.arange(300) == np.abs(right[0]).argmax(), np.float16(0), right),
        "not a number": np.where(np.arange(300) == 7, np.float16(np.nan), right),
    }
    for name, wrong in wrongs.items():
        assert not result.check(wrong, acc16=acc16).ok, name


def test_a_step_of_k_that_is_left_out_is_seen() -> None:
    result = inputs(400, 400, 4096)
    assert not result.check(wide(result, 64), acc16=True).ok
    assert not result.check(wide(result, 1)).ok


def test_another_shape_or_type_is_wrong() -> None:
    result = inputs(20, 30, 40)
    right = wide(result)
    for wrong in (right[:-1], right.T, right.astype(np.float32), right.view(BF16.numpy)):
        assert result.check(wrong).error_ratio == np.inf


def test_each_rung_is_checked_by_what_its_sums_are_kept_in() -> None:
    made = inputs(64, 64, 8192)
    result = narrow(made)
    arch = get("h200")
    verdicts = {rung.name: MATRIX.check(made, rung.kernel_for(made.problem, arch), result).ok for rung in HGEMM}
    in_float32 = {"float32-sums", *(rung.name for rung in ON_WGMMA)}
    assert verdicts == {rung.name: rung.name not in in_float32 for rung in HGEMM}
    bfloat = half_product(64, 64, 64, BF16)
    assert all(rung.kernel_for(bfloat, arch).config["ACC16"] == 0 for rung in HGEMM)


def test_the_peak_is_that_of_the_matrix_units_or_none() -> None:
    problem = half_product(64, 64, 64, BF16)
    assert MATRIX.peak(problem, get("h200")) == 989.4e12
    assert MATRIX.peak(problem, get("t4")) is None
    rates = MATRIX.rates(problem, 1e-3, get("t4"))
    assert (rates["tflops"], rates["peak_fraction"]) == (pytest.approx(2 * 64**3 / 1e9), None)
    assert MATRIX.problem(MATRIX.record(problem)) == problem
