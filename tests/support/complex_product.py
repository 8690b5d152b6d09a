"""The error of complex products, relative to its bound: each part is a real sum of 2 k products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import COMPLEX

#: Roundings beside those of the sum: of a complex alpha's products, of scaling, and of adding beta * C.
_OTHERS = 8

Array = NDArray[Any]


def random(seed: int, *shape: int, dtype: str = "complex64") -> Array:
    """Draw complex numbers of a type with normal parts."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def excess(
    actual: Any, a: Array, b: Array, c: Array | None = None, *, alpha: complex = 1.0, beta: complex = 0.0
) -> float:
    """Return the largest error of a part of ``alpha * a @ b + beta * c`` over its bound; infinite where it is NaN.

    The answer is computed in NumPy's ``longdouble``.
    """
    dtype = COMPLEX[a.dtype.name]
    x, y = a.astype(np.clongdouble), b.astype(np.clongdouble)
    answer = np.asarray(alpha * (x @ y))
    sizes = np.asarray(_size(alpha) * (_sizes(x) @ _sizes(y)), np.float64)
    if c is not None:
        answer = answer + beta * c.astype(np.clongdouble)
        sizes = sizes + _size(beta) * _sizes(c)
    assert actual.shape == answer.shape
    assert actual.dtype == a.dtype
    terms = (2 * a.shape[-1] + _OTHERS) * dtype.roundoff
    error = np.maximum(abs((actual - answer).real), abs((actual - answer).imag))
    ratio = np.asarray(error / (terms / (1 - terms) * sizes + terms * dtype.tiny), np.float64)
    return float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0))


def _size(number: complex) -> float:
    return abs(number.real) + abs(number.imag)


def _sizes(x: Array) -> Array:
    return np.asarray(abs(x.real) + abs(x.imag), np.float64)
