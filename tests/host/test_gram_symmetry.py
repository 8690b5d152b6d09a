"""Gram matrices on the host: symmetric to the bit, whatever order BLAS sums in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.dtypes import ALL
from matmill.reference import check

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def unlike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a BLAS whose sums above the diagonal are not those below it, as those of real ones may be."""
    real = np.matmul

    def skewed(a: Array, b: Array) -> Array:
        result: Array = real(a, b)
        below = np.tri(result.shape[-2], result.shape[-1], -1, dtype=bool) if result.ndim > 1 else np.False_
        return np.where(below, np.nextafter(result, np.inf, dtype=result.dtype), result)

    monkeypatch.setattr(np, "matmul", skewed)


def _matrix(layout: str, *shape: int, dtype: str) -> Array:
    e = np.random.default_rng(0).standard_normal((*shape[:-1], 2 * shape[-1])).astype(ALL[dtype].numpy)
    length = shape[-1]
    views = {
        "packed": np.ascontiguousarray(e[..., :length]),
        "across": np.asfortranarray(e[..., :length]),
        "backwards": e[..., :length][..., ::-1],
        "every second": e[..., ::2],
    }
    return views[layout]


@pytest.mark.parametrize("layout", ["packed", "across", "backwards", "every second"])
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_gram_matrices_are_symmetric_to_the_bit(layout: str, dtype: str, alpha: float) -> None:
    for m, k in ((1, 9), (7, 300), (64, 50), (128, 501)):
        e = _matrix(layout, m, k, dtype=dtype)
        for product in (matmill.inner, matmill.matmul):
            gram = product(e, e.T, alpha=alpha, executor="cpu")
            assert gram.tobytes() == gram.T.tobytes()
            assert check(gram, e, e.T, alpha=alpha).ok


@pytest.mark.parametrize("dtype", ALL)
def test_so_are_batches_and_what_symmetric_matrices_are_added_to(dtype: str) -> None:
    e = _matrix("every second", 2, 3, 70, 40, dtype=dtype)
    c = np.full((70, 70), 3, e.dtype)
    gram = matmill.matmul(e, e.swapaxes(-1, -2), c=c, alpha=0.25, beta=0.5, executor="cpu")
    assert gram.tobytes() == gram.swapaxes(-1, -2).tobytes()


def test_other_products_keep_both_halves() -> None:
    e = _matrix("packed", 5, 30, dtype="float32")
    apart = matmill.inner(e, e.T.copy(), executor="cpu")
    assert (apart != apart.T).any()
    squared = matmill.matmul(e[:, :5], e[:, :5], executor="cpu")
    assert check(squared, e[:, :5], e[:, :5]).ok
    assert matmill.matmul(e[0], e[0], executor="cpu") == pytest.approx(float(e[0] @ e[0]), rel=1e-6)
