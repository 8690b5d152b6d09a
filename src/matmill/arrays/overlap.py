"""Tests for arrays that share memory: strided views in any address space. Only addresses are used, never contents."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from matmill.arrays.operand import Operand

#: Candidate solutions that NumPy's exact test may try before its answer is "maybe".
_WORK = 100_000


class _Phantom:
    """An operand's addresses in the form that NumPy's overlap test reads."""

    def __init__(self, operand: Operand) -> None:
        size = operand.dtype.itemsize
        self.__array_interface__ = {
            "shape": tuple(operand.shape),
            "strides": tuple(stride * size for stride in operand.strides),
            "typestr": operand.dtype.numpy.str,
            "data": (operand.address, True),
            "version": 3,
        }


def overlaps(x: Operand, y: Operand) -> bool | None:
    """Tell whether two operands share an element's bytes; None where finding out would take too long.

    The test is exact (a bounded Diophantine problem, solved by ``numpy.shares_memory``) while it is cheap.
    """
    if x.device != y.device or _apart(x, y) or not x.nbytes or not y.nbytes:
        return False
    try:
        shares: Callable[..., bool] = np.shares_memory  # its type stub knows max_work = 0 and -1 only
        return bool(shares(np.asarray(_Phantom(x)), np.asarray(_Phantom(y)), max_work=_WORK))
    except np.exceptions.TooHardError:
        return None


def mirrors(x: Operand, y: Operand) -> bool:
    """Tell whether ``y`` is ``x`` with its last two dimensions swapped, in the same memory."""
    last = x.shape[-2:]
    return (
        x.address == y.address
        and x.device == y.device
        and (*x.shape[:-2], *last[::-1]) == tuple(y.shape)
        and (*x.strides[:-2], *x.strides[-2:][::-1]) == tuple(y.strides)
    )


def self_overlap(x: Operand) -> bool:
    """Tell whether two indices of an operand may refer to the same element.

    Each dimension, in order of stride, must step beyond everything that the smaller ones reach. The test also returns
    True for layouts that interleave without overlap, which no library creates.
    """
    if not x.nbytes:
        return False
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(x.strides, x.shape, strict=True)):
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def bounds(x: Operand) -> tuple[int, int]:
    """Return first and last element of a non-empty operand, in elements from its address."""
    return _reach(x.shape, x.strides)


@lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    steps = [stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)


def _apart(x: Operand, y: Operand) -> bool:
    (x_low, x_high), (y_low, y_high) = bounds(x), bounds(y)
    x_size, y_size = x.dtype.itemsize, y.dtype.itemsize
    return (
        x.address + (x_high + 1) * x_size <= y.address + y_low * y_size
        or y.address + (y_high + 1) * y_size <= x.address + x_low * x_size
    )
