"""The activations of an epilogue in NumPy, by the formulas of ``include/matmill/dtype/activation.cuh``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: Outputs per block: its temporary arrays fit in a core's cache.
_AT_ONCE = 2**14
_erf = np.frompyfunc(math.erf, 1, 1)


def _relu(x: Array) -> Array:
    positive: Array = np.where(x < 0, x.dtype.type(0), x)
    return positive


def _gelu(x: Array) -> Array:
    # NumPy has no error function, Python has one for float64.
    share: Array = _erf(x * x.dtype.type(math.sqrt(0.5))).astype(x.dtype)
    outputs: Array = 0.5 * x * (1 + share)
    return outputs


def _gelu_tanh(x: Array) -> Array:
    inner: Array = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    outputs: Array = 0.5 * x * (1 + np.tanh(inner))
    return outputs


def _silu(x: Array) -> Array:
    outputs: Array = x / (1 + np.exp(-x))
    return outputs


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}


def activate(name: str, outputs: Array) -> None:
    """Apply one of :data:`~matmill.problem.ACTIVATIONS` to a packed array of float32 or float64, in place.

    >>> x = np.array([-1.0, 0.0, 2.0])
    >>> activate("relu", x)
    >>> x
    array([0., 0., 2.])
    """
    function, flat = _FUNCTIONS[name], outputs.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        part[...] = function(part)
