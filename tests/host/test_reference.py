"""The reference: right answers pass, and everything that should fail does."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill.reference import answer, bound, check
from support.examples import examples

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@examples(40)
@given(st.integers(1, 40), st.integers(0, 1000), st.sampled_from(["float32", "float64"]), st.floats(-3, 3))
def test_any_order_of_summation_passes(k: int, seed: int, dtype: str, alpha: float) -> None:
    a, b, c = (
        _random(seed, 3, k, dtype=dtype),
        _random(seed + 1, k, 4, dtype=dtype),
        _random(seed + 2, 3, 4, dtype=dtype),
    )
    scalar = a.dtype.type
    total = np.zeros((3, 4), dtype)
    for i in np.random.default_rng(seed).permutation(k):
        total = total + a[:, i, None] * b[i]
    result = scalar(alpha) * total + scalar(0.5) * c
    verdict = check(result, a, b, c, alpha=float(scalar(alpha)), beta=0.5)
    assert verdict.ok, verdict


def test_answers_are_exact_rationals_rounded() -> None:
    a, b = _random(0, 2, 9, dtype="float64"), _random(1, 9, 2, dtype="float64")
    for i in range(2):
        for j in range(2):
            exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True))
            error = abs(Fraction(float(answer(a, b)[i, j])) - exact)
            assert error <= Fraction(float(bound(a, b)[i, j]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails(bad: float) -> None:
    a, b = _random(0, 5, 6), _random(1, 6, 7)
    result = a @ b
    result[3, 2] = bad
    assert not check(result, a, b).ok
    assert check(result, a, b).error_ratio == np.inf


def test_one_wrong_element_fails() -> None:
    a, b = _random(0, 64, 300), _random(1, 300, 70)
    result = a @ b
    assert check(result, a, b).ok
    result[63, 69] -= a[63, 7] * b[7, 69]
    assert not check(result, a, b).ok


def test_swapped_columns_fail() -> None:
    a, b = _random(0, 32, 40), _random(1, 40, 32)
    assert not check((a @ b)[:, ::-1], a, b).ok


def test_other_shapes_and_dtypes_fail() -> None:
    a, b = _random(0, 3, 4), _random(1, 4, 5)
    assert not check((a @ b).astype(np.float64), a, b).ok
    assert not check((a @ b).T, a, b).ok


def test_nan_in_an_input_must_reach_the_result() -> None:
    a, b = _random(0, 3, 4), _random(1, 4, 5)
    a[1, 1] = np.nan
    result = a @ b
    assert check(result, a, b).ok
    assert not check(np.nan_to_num(result), a, b).ok


def test_what_is_not_read_does_not_count() -> None:
    a, b, c = _random(0, 3, 4), _random(1, 4, 5), np.full((3, 5), np.nan, np.float32)
    assert check(a @ b, a, b, c, beta=0).ok
    a[...] = np.nan
    ones = np.ones((3, 5), np.float32)
    assert check(ones, a, b, ones, alpha=0, beta=1).ok
    assert not check(2 * ones, a, b, ones, alpha=0, beta=1).ok


def test_results_beyond_the_range_must_be_infinite() -> None:
    a = np.full((1, 1), 3e38, np.float32)
    assert check(np.full((1, 1), np.inf, np.float32), a, a).ok
    assert not check(np.full((1, 1), 3e38, np.float32), a, a).ok


def test_blocks_join_without_a_gap() -> None:
    a, b = _random(0, 2050, 3), _random(1, 3, 2051)
    result = a @ b
    assert check(result, a, b).ok
    for row, column in ((2049, 0), (0, 2050), (2049, 2050), (2047, 2047)):
        wrong = result.copy()
        wrong[row, column] += 1
        assert not check(wrong, a, b).ok


@pytest.mark.parametrize(("left", "right"), [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 6))])
def test_all_shapes_of_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _random(0, *left), _random(1, *right)
    result = np.asarray(np.matmul(a, b))
    assert check(result, a, b).ok
    assert not check(result + 1, a, b).ok


def test_an_empty_sum_is_zero() -> None:
    a, b = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)
    assert check(np.zeros((2, 3), np.float32), a, b).ok
    assert not check(np.ones((2, 3), np.float32), a, b).ok
