"""NVIDIA's driver library through ctypes: what must work before, or without, the driver's Python bindings."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def load() -> ctypes.CDLL:
    """Return the library, loaded. Raises ``OSError`` where no driver is installed."""
    return ctypes.CDLL(LIBRARY)


def launcher(library: ctypes.CDLL) -> Callable[[int, int, int, None], int]:
    """Return ``cuLaunchKernelEx`` (CUDA driver API).

    It takes addresses of a ``CUlaunchConfig``, a kernel and its parameters, and None.

    A call takes 0.2 µs on its own way to the driver; through objects for stream and configuration it takes several.
    """
    address = ctypes.c_void_p
    return _function(library, "cuLaunchKernelEx", address, address, address, address)


def current_context(library: ctypes.CDLL) -> Callable[[int], int]:
    """Give ``cuCtxGetCurrent`` (CUDA driver API): writes the address of the calling thread's context to an address."""
    return _function(library, "cuCtxGetCurrent", ctypes.c_void_p)


def is_capturing(library: ctypes.CDLL) -> Callable[[int, int], int]:
    """Return ``cuStreamIsCapturing`` (CUDA driver API): writes 0, as 32 bits, where no graph captures a stream."""
    return _function(library, "cuStreamIsCapturing", ctypes.c_void_p, ctypes.c_void_p)


def stream_id(library: ctypes.CDLL) -> Callable[[int, int], int]:
    """Return ``cuStreamGetId`` (CUDA driver API): writes 64 bits that no other stream of the process ever has."""
    return _function(library, "cuStreamGetId", ctypes.c_void_p, ctypes.c_void_p)


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Callable[..., int]:
    function = library[name]  # an object of its own, unlike the attribute of that name
    function.argtypes, function.restype = arguments, ctypes.c_int
    call: Callable[..., int] = function
    return call
