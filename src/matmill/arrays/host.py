"""Host memory of any library as a NumPy array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.arrays.operand import inspect
from matmill.dtypes import ELEMENTWISE
from matmill.errors import ArgumentError


def host_array(name: str, value: object) -> NDArray[Any]:
    """Return a NumPy view of an array of any library in host memory.

    Raises :class:`~matmill.errors.ArgumentError` with the argument's ``name`` for an array on a GPU, and the errors of
    :func:`~matmill.arrays.operand.inspect` for other objects.
    """
    if isinstance(value, np.ndarray):
        return value
    operand = inspect(value, name, dtypes=ELEMENTWISE)
    if operand.device[0] != "cpu":
        raise ArgumentError(
            argument=name,
            got="an array on a GPU",
            wanted="one in the host's memory, on which the emulator works",
            fix="Copy it first, for example with .cpu() or .get().",
        )
    owner: NDArray[Any] = operand.owner
    return owner
