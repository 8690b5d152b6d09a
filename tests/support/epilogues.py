"""Products with an epilogue in float64, and how far a result may be from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill import reference
from matmill.dtypes import of_numpy

Array = NDArray[Any]

ACTIVATIONS: dict[str | None, Callable[[float], float]] = {
    None: lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
}
#: The steepest slope of any activation (that of gelu is 1.129), and units roundoff that computing one may cost.
_SLOPE, _COST = 1.13, 16


def added(bias: Array, a: Array, b: Array) -> Array:
    """Return the bias as NumPy broadcasts it to the product, of which a vector has dropped its dimension of 1."""
    if a.ndim == b.ndim == 1:
        return bias.reshape(())
    return bias.reshape(-1) if 1 in {a.ndim, b.ndim} else bias


def error(
    actual: Array,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Array | None = None,
    activation: str | None = None,
) -> float:
    """Give the largest error of an element over its bound: of the sums, of bias and activation, and of one rounding."""
    sums, result = of_numpy(a.dtype, "a").accumulator, of_numpy(actual.dtype, "actual")
    wide = [None if x is None else x.astype(sums.numpy) for x in (a, b, c)]
    exact = reference.answer(*wide, alpha=alpha, beta=beta).astype(np.float64)  # type: ignore[arg-type]
    limit = reference.bound(*wide, alpha=alpha, beta=beta)  # type: ignore[arg-type]
    if bias is not None:
        exact = exact + added(bias, a, b).astype(np.float64)
    limit = _SLOPE * limit + _COST * sums.roundoff * np.abs(exact)
    expected = np.asarray(np.vectorize(ACTIVATIONS[activation], otypes=[np.float64])(exact))
    if result is not sums:
        limit = limit + result.roundoff * (np.abs(expected) + limit) + result.roundoff * result.tiny
    assert actual.shape == expected.shape
    return reference.excess(actual, expected, limit + sums.tiny)
