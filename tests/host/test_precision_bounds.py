"""Error bounds of float32 products in pieces: matrices that are hard to sum stay within them, wrong sums do not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from matmill.errors import UnknownNameError
from matmill.precision import METHODS, SHORTEST_K, UNIT, deepest, error_bound
from support.hard_matrices import KINDS, Pair, matrices
from support.split_products import TF32_SIZES, Array, Sums, by_fma, exact, scaled, share_of_bound, suffice


def share(sums: Sums, pair: Pair) -> float:
    """Return the largest error as a share of the bound, of a result that must be finite."""
    result = sums.product(*pair)
    assert np.isfinite(result).all()
    return share_of_bound(sums.method, *pair, result)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_error_is_above_the_bound(kind: str, method: str, request: pytest.FixtureRequest) -> None:
    m, n = (32, 256) if request.config.getoption("--exhaustive") else (4, 16)
    for k in (SHORTEST_K, 128, 200, 1000):
        assert share(Sums(method), matrices(kind, m, k, n, seed=k)) <= 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["truncated", "spread 1", "as deep as is taken"])
def test_long_k(kind: str, method: str, request: pytest.FixtureRequest) -> None:
    k = 65536 if request.config.getoption("--exhaustive") or method == "fp16x3" else 8192
    assert share(Sums(method), matrices(kind, 2, k, 8)) <= 1


def test_the_bound_of_fma() -> None:
    a, b = matrices("positive", 4, 300, 8)
    assert 0 < share_of_bound("fma", a, b, by_fma(a, b)) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_bounds_are_nearly_reached(method: str) -> None:
    assert share(Sums(method), matrices("truncated pieces", 1, METHODS[method].chunk, 1)) > 0.6


def test_short_k_in_registers_is_not_for_tensor_cores() -> None:
    """Not the bound alone is above FMA's."""
    a, b = matrices("truncated pieces", 1, 32, 1)
    error = np.abs(Sums("tf32x3_registers").product(a, b) - exact(a, b)) / (a @ b)
    assert error > 1.6 * error_bound("fma", 32) * UNIT


@pytest.mark.parametrize(
    ("kind", "k", "sums"),
    [
        *[("truncated", 512, Sums(method, chunk=512)) for method in METHODS],
        *[("truncated", 4096, Sums(method, chunk=None)) for method in METHODS],
        *[("positive", 128, Sums(method, second=False)) for method in METHODS],
    ],
)
def test_wrong_sums_are_above_the_bound(kind: str, k: int, sums: Sums) -> None:
    assert share(sums, matrices(kind, 4, k, 16)) > 1


def test_no_method_is_worse_than_fma_where_it_is_used() -> None:
    for method in METHODS:
        for k in (*range(SHORTEST_K, 3000), *(2**power + 1 for power in range(11, 28))):
            assert error_bound(method, k) <= error_bound("fma", k), (method, k)
    short = SHORTEST_K - 1
    assert error_bound("tf32x3_registers", short) > error_bound("fma", short)


@pytest.mark.parametrize("k", [SHORTEST_K, 1000, 2**16])
def test_the_smallest_elements_that_are_taken(k: int) -> None:
    """How far A's smallest element is below the least size, times how far B's is, decides."""
    a, b = np.ones((2, k), np.float32), np.ones((k, 2), np.float32)
    a[1, 3], b[5, 0], least = 2.0**-28, 0, np.float32(2.0**-28 / deepest(k))
    assert suffice("fp16x3", a, b)
    b[4, 1] = np.nextafter(least, np.float32(1))
    assert suffice("fp16x3", a, b)
    b[4, 1] = least * np.float32(1 - 2.0**-22)
    assert not suffice("fp16x3", a, b)


@pytest.mark.parametrize("name", ["first", "last"])
def test_sums_of_tf32_pieces_are_finite(name: str) -> None:
    """The largest elements that pieces in memory have, and their largest second pieces."""
    k, most = 2**17, np.nextafter(np.float32(TF32_SIZES[1]), np.float32(0))
    size = most if name == "first" else np.float32(TF32_SIZES[1] * (1 - 2.0**-11) * (1 + 2.0**-23))
    assert np.isfinite(Sums("tf32x3").product(np.full((1, k), size), np.full((k, 1), size))).all()


def residual(x: Array, axis: int) -> float:
    """Return the largest part of an element that its two pieces of float16 leave."""
    x = scaled(x, axis)[0]
    first = x.astype(np.float16).astype(np.float64)
    second = ((x - first) * 2**11).astype(np.float16).astype(np.float64)
    return float((np.abs(x - first - second / 2**11)[x != 0] / np.abs(x[x != 0])).max())


@pytest.mark.parametrize("kind", ["tiny pairs", "misaligned"])
def test_exact_pieces_are_not_enough(kind: str) -> None:
    """Pieces may hold every bit of an element and the product still be far from FMA's."""
    a, b = matrices(kind, 1, SHORTEST_K, 1)
    assert residual(a, 1) == residual(b, 0) == 0
    assert not suffice("fp16x3", a, b)
    error = np.abs(Sums("fp16x3").product(a, b) - exact(a, b)) / (np.abs(a) @ np.abs(b))
    assert error > 7 * error_bound("fma", SHORTEST_K) * UNIT


def test_the_page_has_these_bounds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "precision.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| k | fma |")
    columns = (("fma", None), ("fp16x3", 1), ("fp16x3", None), ("tf32x3", None), ("tf32x3_registers", None))
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == 5
    for k, bounds in rows:
        assert bounds.split(" | ") == [f"{error_bound(method, int(k), deep):.1f}" for method, deep in columns]


def test_unknown_methods() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'fp16x3'"):
        error_bound("fp16x2", SHORTEST_K)
