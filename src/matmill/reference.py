"""Reference results in higher precision, and elementwise error bounds.

For float32 the reference is computed in float64, whose own error is 2^-29 of the bound. For float64 it is computed in
NumPy's ``longdouble`` where that is wider than float64 and the product is small; otherwise in float64, and the bound is
doubled, since both sides then err. 16-bit types are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import of_numpy

#: Rows and columns of the blocks in which large products are checked: 2048 x 2048 float64 values are 32 MiB.
_BLOCK = 2048
#: longdouble products run without BLAS, at about 10^8 terms a second.
_MOST_WIDE_TERMS = 2**25
#: Rounding of alpha * sum, of beta * c and of their sum, each at most one unit roundoff of its own result.
_EPILOGUE = 3

Array = NDArray[Any]


@dataclass(frozen=True)
class Check:
    """The outcome of a check: ``ok``, and the largest ratio of error to bound (infinite for missing values and NaN)."""

    ok: bool
    error_ratio: float

    def __bool__(self) -> bool:
        return self.ok


def answer(a: Array, b: Array, c: Array | None = None, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """Return ``alpha * a @ b + beta * c`` in float64 or ``longdouble``; shapes as in ``matmul``.

    ``c`` is not read where ``beta`` is 0, nor ``a`` and ``b`` where ``alpha`` is.

    >>> answer(np.ones((2, 3), np.float32), np.ones(3, np.float32), alpha=2.0)
    array([6., 6.])
    """
    work = _work_type(a, b)
    with np.errstate(all="ignore"):
        if alpha == 0:
            total = np.zeros(_result_shape(a, b), work)
        else:
            total = np.asarray(np.matmul(a.astype(work), b.astype(work)) * work.type(alpha))
        if beta != 0 and c is not None:
            total = total + work.type(beta) * c.astype(work)
    return total


def bound(a: Array, b: Array, c: Array | None = None, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """Return the largest error that an element of ``alpha * a @ b + beta * c`` may have, in any order of summation.

    ``(k + 3) u / (1 - (k + 3) u) * |alpha| |a| |b| + 3 u |beta c|`` with the unit roundoff u (half of eps): Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.5; plus one smallest normal number per term for results
    that underflow. u is that of the accumulator's type. A result of another type is rounded once more.
    """
    dtype = of_numpy(a.dtype, "a")
    sums = dtype.accumulator
    relative = relative_bound(a.shape[-1], sums.roundoff)
    tiny = sums.tiny * (a.shape[-1] + _EPILOGUE)
    sides = 2 if _work_type(a, b) == dtype.numpy else 1
    with np.errstate(all="ignore"):
        if alpha == 0:
            size = np.zeros(_result_shape(a, b))
        else:
            size = np.matmul(np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)) * abs(alpha)
        total = np.asarray(size * relative + tiny * max(1.0, abs(alpha)), np.float64)
        if beta != 0 and c is not None:
            total = total + _EPILOGUE * sums.roundoff * np.abs(beta * c.astype(np.float64))
        if dtype.wider:
            size = np.abs(answer(a, b, c, alpha=alpha, beta=beta)) + total
            total = total + dtype.roundoff * size + 2 * dtype.roundoff * dtype.tiny
    return sides * total


def relative_bound(k: int, roundoff: float) -> float:
    """Return the largest error of a sum of ``k`` products, relative to the sum of their sizes, for :func:`bound`."""
    terms = (k + _EPILOGUE) * roundoff
    return terms / (1 - terms)


def check(actual: Array, a: Array, b: Array, c: Array | None = None, *, alpha: float = 1.0, beta: float = 0.0) -> Check:
    """Compare every element of ``actual`` with the reference; shapes as in ``matmul``.

    An element is right if its error is within :func:`bound`. Where the reference is not finite or exceeds the dtype's
    range, the element must be that same value. Unexpected NaN is wrong, and so is a result of another shape or dtype.

    >>> x = np.ones((2, 2), np.float32)
    >>> check(x @ x, x, x).ok, check(x @ x + 1, x, x).ok, check(np.full((2, 2), np.nan, np.float32), x, x).ok
    (True, False, False)
    """
    shape = _result_shape(a, b)
    a2, b2 = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    batch = shape[: len(shape) - (a.ndim > 1) - (b.ndim > 1)]
    full = (*batch, a2.shape[-2], b2.shape[-1])
    if actual.shape != shape or actual.dtype != a.dtype:
        return Check(ok=False, error_ratio=float("inf"))
    use_c = c is not None and beta != 0
    c2 = np.broadcast_to(c, shape).reshape(full) if c is not None and use_c else None
    result = actual.reshape(full)
    a2, b2 = np.broadcast_to(a2, (*batch, *a2.shape[-2:])), np.broadcast_to(b2, (*batch, *b2.shape[-2:]))
    worst = 0.0
    for index in np.ndindex(*batch):
        for rows, columns in _blocks(full[-2], full[-1]):
            block_c = None if c2 is None else c2[index][rows, columns]
            operands = (a2[index][rows], b2[index][:, columns], block_c)
            worst = max(worst, _ratio(result[index][rows, columns], *operands, alpha=alpha, beta=beta))
    return Check(ok=worst <= 1.0, error_ratio=worst)


def excess(actual: Array, expected: Array, limit: Array) -> float:
    """Return the largest ratio of error to ``limit``; infinite where a value is missing or unexpectedly not finite.

    >>> excess(np.float32([1.0, 2.0]), np.array([1.0, 2.5]), np.array([0.1, 1.0]))
    0.5
    """
    if not actual.size:
        return 0.0
    with np.errstate(all="ignore"):
        rounded = expected.astype(actual.dtype)
        ratio = np.abs(actual.astype(expected.dtype) - expected).astype(np.float64) / limit
    ordinary = np.isfinite(rounded) & np.isfinite(limit)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    ratio = np.where(ordinary, ratio, np.where(same, 0.0, np.inf))
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def _ratio(actual: Array, a: Array, b: Array, c: Array | None, *, alpha: float, beta: float) -> float:
    """Return the largest ratio of error to bound in one block; infinite where a value is unexpectedly not finite."""
    if not actual.size:
        return 0.0
    return excess(actual, answer(a, b, c, alpha=alpha, beta=beta), bound(a, b, c, alpha=alpha, beta=beta))


def _result_shape(a: Array, b: Array) -> tuple[int, ...]:
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.ndim > 1 else ()
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns)


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    for row in range(0, rows, _BLOCK):
        for column in range(0, columns, _BLOCK):
            yield slice(row, row + _BLOCK), slice(column, column + _BLOCK)


def _work_type(a: Array, b: Array) -> np.dtype[Any]:
    double, wide = np.dtype(np.float64), np.dtype(np.longdouble)
    terms = a.size * (b.shape[-1] if b.ndim > 1 else 1)
    wider = np.finfo(wide).eps < np.finfo(double).eps
    return wide if a.dtype == double and wider and terms <= _MOST_WIDE_TERMS else double
