"""NVIDIA's driver library through ctypes: calls that must work before, or without, the driver's Python bindings."""

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
    """Return ``cuLaunchKernelEx`` (CUDA driver API) as a ctypes function.

    It takes the addresses of a ``CUlaunchConfig``, of a kernel and of its parameters, and None.

    This way a call takes 0.2 µs to reach the driver. With objects for stream and configuration it takes several.
    """
    address = ctypes.c_void_p
    return _function(library, "cuLaunchKernelEx", address, address, address, address)


def current_context(library: ctypes.CDLL) -> Callable[[int], int]:
    """Return ``cuCtxGetCurrent`` (CUDA driver API), which stores the calling thread's context at an address."""
    return _function(library, "cuCtxGetCurrent", ctypes.c_void_p)


def is_capturing(library: ctypes.CDLL) -> Callable[[int, int], int]:
    """Return ``cuStreamIsCapturing`` (CUDA driver API), which stores 0 (32 bits) unless a graph captures the stream."""
    return _function(library, "cuStreamIsCapturing", ctypes.c_void_p, ctypes.c_void_p)


def stream_id(library: ctypes.CDLL) -> Callable[[int, int], int]:
    """Return ``cuStreamGetId`` (CUDA driver API), which stores 64 bits that no other stream of the process ever has."""
    return _function(library, "cuStreamGetId", ctypes.c_void_p, ctypes.c_void_p)


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Callable[..., int]:
    function = library[name]  # a separate object: the attribute of that name is shared
    function.argtypes, function.restype = arguments, ctypes.c_int
    call: Callable[..., int] = function
    return call
