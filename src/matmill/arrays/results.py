"""Result arrays, allocated by the caller's library on its device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np

from matmill.arrays.operand import Operand
from matmill.dtypes import BF16, DType
from matmill.errors import ArgumentError, ReadOnlyError

#: Libraries whose own functions allocate results; other libraries have the array API's.
_NATIVE = frozenset({"numpy", "torch", "cupy"})

Shape: TypeAlias = "int | tuple[int, ...]"


#: A new packed array and its address.
Result: TypeAlias = tuple[Any, int]


def _torch_empty(
    like: Any, operand: Operand, shape: Shape, stream: int | None = None, wanted: DType | None = None
) -> Result:
    dtype = None if wanted is None else getattr(sys.modules["torch"], wanted.name)
    # torch would copy a lazy conjugate to make an empty tensor like it.
    like = like.conj() if operand.dtype.part is not None and like.is_conj() else like
    if stream is None:
        array = like.new_empty(shape, dtype=dtype)
    else:
        with _torch_stream(operand.device[1], stream):
            array = like.new_empty(shape, dtype=dtype)
    try:
        return array, array.data_ptr()
    except RuntimeError as error:
        raise ArgumentError(
            argument="out",
            got="None inside a transformation of torch.func, where torch wraps new tensors",
            wanted="a plain tensor to write into",
            fix="Use the functions of matmill.torch, or call outside of the transformation.",
        ) from error


def _cupy_empty(
    _like: Any, operand: Operand, shape: Shape, stream: int | None = None, wanted: DType | None = None
) -> Result:
    cupy = sys.modules["cupy"]
    dtype = (wanted or operand.dtype).numpy
    with cupy.cuda.Device(operand.device[1]):
        if stream is None:
            array = cupy.empty(shape, dtype)
        else:
            with cupy.cuda.ExternalStream(stream):
                array = cupy.empty(shape, dtype)
    return array, array.data.ptr


#: Functions that allocate a packed array of a shape on the device of ``like``, with its dtype or ``wanted``,
#: uninitialised. Only libraries that reuse freed memory in the order of one stream are in the table; calls work on that
#: library's current stream by default. So ``stream`` must be the handle of the stream on which the array is used; None
#: means the current one.
ALLOCATE: dict[str, Callable[..., Result]] = {"torch": _torch_empty, "cupy": _cupy_empty}


def _torch_stream(index: int, stream: int) -> AbstractContextManager[Any]:
    """Return the context in which ``stream`` is torch's current stream."""
    cuda = sys.modules["torch"].cuda
    # ExternalStream would treat 0, a handle of the default stream, as a stream of its own.
    own = cuda.default_stream(index) if stream in {0, 1} else cuda.ExternalStream(stream, device=index)
    context: AbstractContextManager[Any] = cuda.stream(own)
    return context


def from_host(like: Any, operand: Operand, array: np.ndarray[Any, Any]) -> Any:
    """Return ``array`` as an array of the library of ``like``, on its (host) device."""
    if operand.library == "numpy":
        return array
    if operand.library == "torch":
        torch = sys.modules["torch"]
        # torch could not resize NumPy's memory, as FSDP does: the result is a copy in torch's memory.
        if array.dtype == BF16.numpy:  # NumPy's custom type, which torch does not know
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).clone()
        return torch.from_numpy(array).clone()
    if not hasattr(like, "__array_namespace__"):
        return array
    return namespace(like, operand).asarray(array, device=like.device)


def makes_results(like: Any, operand: Operand) -> bool:
    """Tell whether the library of ``like`` can allocate results."""
    return operand.library in _NATIVE or hasattr(like, "__array_namespace__")


def check_results(like: Any, operand: Operand) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` if no result can be allocated.

    On the host NumPy can always do so, for libraries without an array API namespace.
    """
    if operand.library not in _NATIVE and operand.device[0] != "cpu":
        namespace(like, operand)


def namespace(like: Any, operand: Operand) -> Any:
    """Return the array API namespace of ``like``, with its ``from_dlpack`` and ``asarray``."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    raise ArgumentError(
        argument="out",
        got=f"None, with arrays of {operand.library}",
        wanted="an array to write into, for a library without the array API's namespace",
        fix="Pass out=.",
    )


def will_write(array: Any, library: str) -> None:
    """Tell ``library`` that its ``array`` is about to be written.

    torch counts the versions of a tensor: a backward pass that saved the old values then raises instead of using the
    new ones. Raises :class:`~matmill.errors.ReadOnlyError` where torch forbids writing.
    """
    if library != "torch":
        return
    torch = sys.modules["torch"]
    if not array.is_inference():
        torch.autograd.graph.increment_version(array)
    elif not torch.is_inference_mode_enabled():
        raise ReadOnlyError(
            argument="out",
            got="an inference tensor, outside of torch.inference_mode()",
            wanted="a tensor that may be written",
            fix="Omit out=, or call inside torch.inference_mode().",
        )
