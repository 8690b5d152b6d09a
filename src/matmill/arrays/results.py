"""Arrays to write results into, in the caller's library and on its device."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
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


def empty_result(like: Any, operand: Operand, shape: tuple[int, ...], stream: int | None = None) -> Result | None:
    """An uninitialised packed array of ``shape`` beside ``like``: same library, device and dtype.

    ``stream`` is the handle of the stream on which it will be written, None for the library's current one. The
    libraries hand freed memory out again in the order of one stream, so the memory must come from that stream's.

    None where the library has no way to hand out memory to be written (JAX: its arrays are immutable); such results
    are exported through DLPack once they are written.
    """
    library = operand.library
    index = operand.device[1]
    if library == "torch":
        if stream is None:
            array = like.new_empty(shape)
        else:
            with _torch_stream(index, stream):
                array = like.new_empty(shape)
        return Result(array, array.data_ptr())
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(index):
            if stream is None:
                array = cupy.empty(shape, operand.dtype.numpy)
            else:
                with cupy.cuda.ExternalStream(stream):
                    array = cupy.empty(shape, operand.dtype.numpy)
        return Result(array, array.data.ptr)
    return None


def _torch_stream(index: int, stream: int) -> AbstractContextManager[Any]:
    """The context in which the stream with that handle is torch's current one."""
    cuda = sys.modules["torch"].cuda
    # ExternalStream takes neither name of the default stream: it would make 0 a stream of its own.
    own = cuda.default_stream(index) if stream in {0, 1} else cuda.ExternalStream(stream, device=index)
    made: AbstractContextManager[Any] = cuda.stream(own)
    return made


def from_host(like: Any, operand: Operand, array: np.ndarray[Any, Any]) -> Any:
    """``array`` in the library of ``like``, on its (host) device."""
    if operand.library == "numpy":
        return array
    if operand.library == "torch":
        return sys.modules["torch"].from_numpy(array)
    return namespace(like, operand).asarray(array, device=like.device)


def check_results(like: Any, operand: Operand) -> None:
    """Raises :class:`~matmill.errors.ArgumentError` where no array of the library of ``like`` can be made."""
    if operand.library not in _NATIVE:
        namespace(like, operand)


def namespace(like: Any, operand: Operand) -> Any:
    """The array API namespace of ``like``, whose ``from_dlpack`` and ``asarray`` make arrays of its library."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    raise ArgumentError(
        argument="out",
        got=f"None, with arrays of {operand.library}",
        wanted="an array to write into, for a library without the array API's namespace",
        fix="Pass out=.",
    )
