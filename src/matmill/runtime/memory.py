"""A GPU's memory, and copies between it and NumPy arrays."""

from __future__ import annotations

import weakref
from typing import Any, Protocol, Self

import numpy as np

from matmill.errors import LaunchError, size
from matmill.launch import Pointer


class Driver(Protocol):
    """The functions that memory needs: an interface of :class:`matmill.runtime.gpu.GPU`."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory."""

    def free(self, address: int) -> None:
        """Free memory."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver."""


class Allocation:
    """Device memory of one GPU, freed by :meth:`close` or with the last reference. A context manager."""

    def __init__(self, gpu: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        self.gpu = gpu
        # The driver refuses to allocate 0 bytes. Kernels on empty arrays are never launched, so one byte serves.
        self.address = gpu.allocate(max(1, nbytes))
        self._free = weakref.finalize(self, gpu.free, self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def pointer(self, name: str, offset: int = 0) -> Pointer:
        """Return the address ``offset`` bytes from the start, with a name for messages."""
        return Pointer(name, self.address + offset)

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return a copy of the first elements as a packed NumPy array; waits for the default stream only."""
        array = np.empty(shape, dtype)
        if array.nbytes > self.nbytes:
            raise LaunchError(
                argument="shape",
                got=f"{size(array.nbytes)} to download",
                wanted=f"at most the {size(self.nbytes)} of the allocation",
                fix="Ask for fewer elements.",
            )
        if array.nbytes:
            self.gpu.call("cuMemcpyDtoH", array.ctypes.data, self.address, array.nbytes)
        return array

    def fill_bytes(self, value: int) -> None:
        """Set every byte; complete when the call returns."""
        if self.nbytes:
            self.gpu.call("cuMemsetD8", self.address, value, self.nbytes)
            self.gpu.call("cuStreamSynchronize", 0)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Copy a packed NumPy array to the start; complete when the call returns."""
        if array.nbytes:
            self.gpu.call("cuMemcpyHtoD", self.address, array.ctypes.data, array.nbytes)
            # A copy from pageable memory may return before the last bytes have arrived.
            self.gpu.call("cuStreamSynchronize", 0)

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._free()
