"""Kernels that measure a GPU's own parameters: latencies, bandwidths, rates of arithmetic, the cost of a launch.

Each folder holds the kernels of one kind of figure and the problem they take; ``bench/probe/run.py`` runs them all.
They compute no product: ``a`` of their :class:`~matmill.kernel.GemmOperands` is the buffer that they read, and ``d``
the one that they write. :func:`buffers` returns such operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import DType
from matmill.kernel import GemmOperands, Kernel, P
from matmill.launch import Pointer

_UNUSED = Pointer("unused", 0)


def buffers(read: Pointer = _UNUSED, written: Pointer = _UNUSED) -> GemmOperands:
    """Return the operands of a kernel that reads one buffer and writes another."""
    return GemmOperands(a=read, b=_UNUSED, c=_UNUSED, d=written)


def per_lane(dtype: DType, first: float, second: float) -> NDArray[Any]:
    """Return the input of arithmetic kernels: 32 times ``first``, then 32 times ``second``, one of each per lane."""
    return np.repeat(np.array([first, second], dtype.numpy), 32)


def lengths(kernel: Kernel[P]) -> tuple[Kernel[P], Kernel[P]]:
    """Return the kernel with its ``LENGTH`` and with twice that: their trips differ by ``LENGTH`` instructions."""
    return kernel, kernel.with_config(kernel.config.replace(LENGTH=2 * kernel.config["LENGTH"]))
