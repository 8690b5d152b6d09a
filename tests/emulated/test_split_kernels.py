"""float32 products in pieces by the kernels: the bits of the model, bounds, and numbers that pieces cannot hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from matmill.kernel import Kernel
from matmill.kernels.pieces import METHODS as IN_MEMORY
from matmill.precision import METHODS, SHORTEST_K, deepest
from matmill.problem import Gemm
from support.hard_matrices import KINDS, Pair, matrices
from support.split_kernels import check_bound, multiplied, product_of
from support.split_products import (
    TF32_SIZES,
    Array,
    by_fma,
    expected,
    share_of_bound,
    suffice,
    summed_by,
)
from support.strided import COLUMN, ROW, Layout
from support.strided_product import StridedProduct


def run(product: StridedProduct, kernel: Kernel[Gemm]) -> bool:
    """Run a kernel in the emulator, and tell whether its blocks multiplied whole elements."""
    reports = product.emulated(kernel, late_copies=True, races=False)
    assert all(report.ok for report in reports)
    return len(reports) > 1 and reports[-1].counters.hmma > 0


@pytest.mark.parametrize("k", [SHORTEST_K, 128, 200, 1000])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_sum_as_the_model_does(kind: str, method: str, k: int) -> None:
    """Bit by bit, also where pieces do not suffice; and no error is above the bound."""
    a, b = matrices(kind, 16, k, 8, seed=k)
    result = multiplied(method, (a, b), run)
    assert np.array_equal(result, expected(method, a, b))
    assert share_of_bound(summed_by(method, a, b), a, b, result) <= 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_many_outputs(kind: str, method: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--exhaustive"):
        pytest.skip("10^5 outputs of each kind are the nightly run's")
    check_bound(method, kind, (320, 128, 320), run)


def _drawn(k: int = 90) -> Pair:
    rng = np.random.default_rng(k)
    return rng.uniform(-1, 1, (10, k)).astype(np.float32), rng.uniform(-1, 1, (k, 8)).astype(np.float32)


def _one(number: float, scale: float = 1.0) -> Callable[[Array, Array], None]:
    """Return a change of one matrix to an element of this size, of the other one by a factor."""

    def change(x: Array, y: Array) -> None:
        x[3, 70], y[...] = number, y * np.float32(scale)

    return change


def _row(numbers: Callable[[Array], Array]) -> Callable[[Array, Array], None]:
    """Return a change of a row."""

    def change(x: Array, _: Array) -> None:
        x[3] = numbers(x[3])

    return change


def _opposite(x: Array, y: Array) -> None:
    x[3, [5, 70]], y[...] = [np.inf, -np.inf], np.abs(y)


def _infinite_times_zero(x: Array, y: Array) -> None:
    x[3, 70], y[70] = np.inf, 0


def _cancelling(x: Array, y: Array) -> None:
    """Let a sum come to 3e38 and back."""
    x[3], y[...] = 0, 1
    x[3, :3] = 3e38, -3e38, 1


def _mixed(x: Array, y: Array) -> None:
    x *= np.float32(2) ** np.arange(-90, 90, 18)[: len(x), None].astype(np.float32)
    y *= np.float32(2.0**-9)


#: Changes of a matrix with rows along k, and of the other one, that has them across k.
NUMBERS: dict[str, Callable[[Array, Array], None]] = {
    "infinity": _one(np.inf),
    "minus infinity": _one(-np.inf),
    "NaN": _one(np.nan),
    "opposite infinities": _opposite,
    "infinity times 0": _infinite_times_zero,
    "a zero": _one(0.0),
    "a negative zero": _one(-0.0),
    "a row of zeros": _row(np.zeros_like),
    "a row of negative zeros": _row(lambda row: np.full_like(row, -0.0)),
    "a row of subnormal numbers": _row(lambda row: row * np.float32(2.0**-130)),
    "a row of subnormal numbers of one size": _row(lambda row: np.sign(row) * np.float32(2.0**-140)),
    "a row of the least numbers": _row(lambda row: np.sign(row) * np.float32(2.0**-149)),
    "a result that overflows": _one(3e38, 8),
    "large, and no sum overflows": _one(3e38, 2.0**-60),
    "large, and sums nearly overflow": _one(3e38),
    "sums that go and come back": _cancelling,
    "rows of mixed size": _mixed,
    "one huge element": _one(2.0**40),
    "one tiny element": _one(2.0**-100),
}


@pytest.mark.parametrize("side", "AB")
@pytest.mark.parametrize("method", IN_MEMORY)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_at_the_ends_of_the_range(name: str, method: str, side: str) -> None:
    a, b = _drawn()
    NUMBERS[name](*((a, b) if side == "A" else (b.T, a.T)))
    result = multiplied(method, (a, b), run)
    right, fma = expected(method, a, b), by_fma(a, b)
    # A NaN has one of many bits, and 0 the sign that FMA gives it.
    assert np.array_equal(result, right, equal_nan=True)
    assert np.array_equal(np.isnan(result), np.isnan(fma))
    special = ~np.isfinite(fma)
    assert np.array_equal(result[special], fma[special], equal_nan=True)
    assert np.array_equal(np.signbit(result[fma == 0]), np.signbit(fma[fma == 0]))
    rows, columns = (~special.any(axis=1), slice(None)) if side == "A" else (slice(None), ~special.any(axis=0))
    assert share_of_bound(summed_by(method, a, b), a[rows], b[:, columns], result[rows][:, columns]) <= 1


def _with_smallest(sizes: tuple[float, float], k: int) -> Pair:
    """Return matrices whose elements are 1, but for one of each."""
    a, b = np.ones((10, k), np.float32), np.ones((k, 8), np.float32)
    a[9, k - 1], b[0, 7] = sizes
    return a, b


@pytest.mark.parametrize(
    ("method", "sizes", "falls_back"),
    [
        *[
            ("fp16x3", (2.0**-28 * share, 2.0**-28 / deepest(200) / share * (1 + 2.0**-20 * sign)), sign < 0)
            for share in (1, 0.5)
            for sign in (1, -1)
        ],
        ("tf32x3", (TF32_SIZES[0], 1.0), False),
        ("tf32x3", (1.0, -TF32_SIZES[0]), False),
        ("tf32x3", (1.0, TF32_SIZES[0] - 2.0**-149), True),
        ("tf32x3", (-TF32_SIZES[0] + 2.0**-149, 1.0), True),
        ("tf32x3", (TF32_SIZES[1] - 2.0**30, -TF32_SIZES[1] + 2.0**30), False),
        ("tf32x3", (TF32_SIZES[1], 1.0), True),
        ("tf32x3", (1.0, -TF32_SIZES[1]), True),
    ],
)
def test_elements_that_are_just_lost_and_just_not(method: str, sizes: tuple[float, float], *, falls_back: bool) -> None:
    a, b = _with_smallest(sizes, 200)
    assert suffice(method, a, b) != falls_back
    product, kernel = product_of(method, a, b)
    assert run(product, kernel) == falls_back
    assert np.array_equal(product.arrays["D"][0], expected(method, a, b))


@pytest.mark.parametrize("method", IN_MEMORY)
@pytest.mark.parametrize(("a_layout", "b_layout"), [(ROW, COLUMN), (COLUMN, ROW)], ids=["along k", "across k"])
@pytest.mark.parametrize("k", [600, 1100, 4200, 16500])
def test_runs_of_any_length(
    k: int, a_layout: Layout, b_layout: Layout, method: str, request: pytest.FixtureRequest
) -> None:
    """By a warp, several, a block, or a cluster; the last ones are longer than what registers hold."""
    if k > 2**14 and not request.config.getoption("--exhaustive"):
        pytest.skip("slow to emulate")
    a, b = matrices("positive", 5, k, 3, seed=k)
    a[[0, 1, 2], [k - 1, k // 2, 3]] = b[[k // 3, k - 2, 0], [0, 1, 2]] = 4
    assert suffice(method, a, b)
    product, kernel = product_of(method, a, b, a_layout=a_layout, b_layout=b_layout)
    reports = product.emulated(kernel, late_copies=True, races=k == 1100)
    assert all(report.ok for report in reports)
    assert np.array_equal(product.arrays["D"][0], expected(method, a, b))


@pytest.mark.parametrize("method", IN_MEMORY)
def test_no_launch_races_with_another(method: str) -> None:
    for number in (1.0, 2.0**-100):
        a, b = _drawn()
        a[3, 70] = number
        product, kernel = product_of(method, a, b)
        reports = product.emulated(kernel, late_copies=True)
        assert [str(one) for report in reports for one in report.hazards if one.severity != "note"] == []
        assert np.array_equal(product.arrays["D"][0], expected(method, a, b))
