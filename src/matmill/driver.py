"""NVIDIA's driver library through ctypes: what must work before, or without, the driver's Python bindings."""

from __future__ import annotations

import ctypes
import sys

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def load() -> ctypes.CDLL:
    """The library, loaded. Raises ``OSError`` where no driver is installed."""
    return ctypes.CDLL(LIBRARY)
