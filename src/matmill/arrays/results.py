"""Arrays to write results into, in the caller's library and on its device."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from matmill.arrays.operand import Operand
from matmill.errors import ArgumentError

#: Libraries whose own functions make results; others have the array API's.
_NATIVE = frozenset({"numpy", "torch", "cupy"})


class Result(NamedTuple):
    """A fresh packed array and its address."""

    array: Any
    address: int


def empty_result(like: Any, operand: Operand, shape: tuple[int, ...]) -> Result | None:  # noqa: ANN401 — any library's
    """An uninitialised packed array of ``shape`` beside ``like``: same library, device and dtype.

    None where the library has no way to hand out memory to be written (JAX: its arrays are immutable); such results
    are exported through DLPack once they are written.
    """
    library = operand.library
    if library == "torch":
        array = like.new_empty(shape)
        return Result(array, array.data_ptr())
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(operand.device[1]):
            array = cupy.empty(shape, operand.dtype.numpy)
        return Result(array, array.data.ptr)
    return None


def from_host(like: Any, operand: Operand, array: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401 — any library's
    """``array`` in the library of ``like``, on its (host) device."""
    if operand.library == "numpy":
        return array
    if operand.library == "torch":
        return sys.modules["torch"].from_numpy(array)
    return namespace(like, operand).asarray(array, device=like.device)


def check_results(like: Any, operand: Operand) -> None:  # noqa: ANN401 — any library's
    """Raises :class:`~matmill.errors.ArgumentError` where no array of the library of ``like`` can be made."""
    if operand.library not in _NATIVE:
        namespace(like, operand)


def namespace(like: Any, operand: Operand) -> Any:  # noqa: ANN401 — any library's
    """The array API namespace of ``like``, whose ``from_dlpack`` and ``asarray`` make arrays of its library."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    raise ArgumentError(
        argument="out",
        got=f"None, with arrays of {operand.library}",
        wanted="an array to write into, for a library without the array API's namespace",
        fix="Pass out=.",
    )
