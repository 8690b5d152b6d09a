"""The interface of a GPU for streaming, and its implementation: two streams, their events, page-locked memory."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from matmill.errors import LaunchError, size
from matmill.jit.compile import Binary
from matmill.launch import Launch
from matmill.runtime.gpu import GPU

Bytes = NDArray[np.uint8]

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_BY_ITSELF = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream, which others may use


class Device(Protocol):
    """Memory, streams and events. Functions that enqueue return at once. Streams and events are opaque handles."""

    def pin(self, nbytes: int) -> Bytes:
        """Return page-locked host memory, from which copies overlap with kernels."""

    def unpin(self, memory: Bytes) -> None:
        """Free page-locked memory."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of device memory, aligned to 256 bytes."""

    def free(self, address: int) -> None:
        """Free device memory."""

    def stream(self) -> Any:
        """Return a new stream."""

    def end_stream(self, stream: Any) -> None:
        """Destroy a stream."""

    def event(self) -> Any:
        """Return a new event, which counts as complete until it is recorded."""

    def end_event(self, event: Any) -> None:
        """Destroy an event."""

    def clear(self, address: int, nbytes: int, stream: Any) -> None:
        """Enqueue setting all bytes to zero."""

    def copy_in(self, address: int, memory: Bytes, stream: Any) -> None:
        """Enqueue a copy of page-locked memory to the device."""

    def copy_out(self, memory: Bytes, address: int, stream: Any) -> None:
        """Enqueue a copy from the device to page-locked memory."""

    def launch(self, binary: Binary, launch: Launch, stream: Any) -> None:
        """Enqueue a kernel."""

    def record(self, event: Any, stream: Any) -> None:
        """Record the event after the present work of the stream."""

    def after(self, event: Any, stream: Any) -> None:
        """Make the stream wait for the event."""

    def wait(self, event: Any) -> None:
        """Make the host wait for the event."""

    def drain(self, stream: Any) -> None:
        """Make the host wait for all work on the stream."""


class OnGPU:
    """The :class:`Device` of a GPU, by driver calls; every failure is a LaunchError."""

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu
        self._call = gpu.call

    def free_bytes(self) -> int:
        """Return the bytes of device memory that are free now."""
        return int(self._call("cuMemGetInfo"))

    def pin(self, nbytes: int) -> Bytes:
        """Return page-locked host memory."""
        address = self._memory("page-locked host memory", nbytes, "cuMemHostAlloc", nbytes, 0)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def unpin(self, memory: Bytes) -> None:
        """Free page-locked memory."""
        self._call("cuMemFreeHost", memory.ctypes.data)

    def allocate(self, nbytes: int) -> int:
        """Return device memory."""
        return self._memory(f"memory of GPU {self._gpu.index}", nbytes, "cuMemAlloc", nbytes)

    def _memory(self, kind: str, nbytes: int, name: str, *args: int) -> int:
        try:
            return int(self._call(name, *args))
        except LaunchError as error:
            raise LaunchError(
                argument="E, F",
                got=f"no {kind} for a buffer to stream through: {error.got}",
                wanted=f"{size(nbytes)} of it",
                fix="Free some, or use executor='cpu'.",
            ) from error

    def free(self, address: int) -> None:
        """Free device memory."""
        self._gpu.free(address)

    def stream(self) -> Any:
        """Return a new stream that does not wait for the default stream."""
        return self._call("cuStreamCreate", _BY_ITSELF)

    def end_stream(self, stream: Any) -> None:
        """Destroy a stream."""
        self._call("cuStreamDestroy", stream)

    def event(self) -> Any:
        """Return a new event."""
        return self._call("cuEventCreate", _NO_TIMING)

    def end_event(self, event: Any) -> None:
        """Destroy an event."""
        self._call("cuEventDestroy", event)

    def clear(self, address: int, nbytes: int, stream: Any) -> None:
        """Enqueue setting all bytes to zero."""
        self._call("cuMemsetD8Async", address, 0, nbytes, stream)

    def copy_in(self, address: int, memory: Bytes, stream: Any) -> None:
        """Enqueue a copy to the device."""
        self._call("cuMemcpyHtoDAsync", address, memory.ctypes.data, memory.nbytes, stream)

    def copy_out(self, memory: Bytes, address: int, stream: Any) -> None:
        """Enqueue a copy from the device."""
        self._call("cuMemcpyDtoHAsync", memory.ctypes.data, address, memory.nbytes, stream)

    def launch(self, binary: Binary, launch: Launch, stream: Any) -> None:
        """Enqueue a kernel."""
        self._gpu.launch(binary, launch, int(stream))

    def record(self, event: Any, stream: Any) -> None:
        """Record the event after the present work of the stream."""
        self._call("cuEventRecord", event, stream)

    def after(self, event: Any, stream: Any) -> None:
        """Make the stream wait for the event."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def wait(self, event: Any) -> None:
        """Make the host wait for the event."""
        self._call("cuEventSynchronize", event)

    def drain(self, stream: Any) -> None:
        """Make the host wait for all work on the stream."""
        self._call("cuStreamSynchronize", stream)
