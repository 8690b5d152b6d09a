"""Device memory of each stream: a counter for the blocks of a launch, and a workspace for their partial sums.

Launches of one stream follow each other and share one allocation, so that a call allocates nothing. A captured graph
may be launched on any stream, concurrently with others: every launch in it has its own counter, for the life of the
process, and its caller provides the workspace.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import TypeAlias

from matmill.driver import is_capturing, load, stream_id
from matmill.kernels.splitk import MOST_ADDED_BY_ONE
from matmill.runtime.gpu import GPU
from matmill.runtime.memory import Allocation

#: Addresses of a workspace (0 if the caller must provide it) and of a counter, which is 0 between launches.
StreamBuffers: TypeAlias = tuple[int, int]

#: Bytes from counter to counter, which keep each aligned, and bytes per allocation of counters.
_WORD, _SLAB = 16, 64 * 1024
#: The most streams with a workspace. A program with more creates and destroys streams, and never uses theirs again.
_MOST_WORKSPACES = 64
#: The default stream's key. No graph captures it, so the driver need not be called.
_DEFAULT = -1


class _QueryResult(threading.local):
    """Memory in which the driver stores what a thread queries of a stream."""

    def __init__(self) -> None:
        self.value = ctypes.c_uint64()
        self.address = ctypes.addressof(self.value)


class Scratch:
    """Workspace and counter for each stream of a GPU."""

    def __init__(self, gpu: GPU) -> None:
        library = load()
        self._gpu = gpu
        self._is_capturing, self._stream_id = is_capturing(library), stream_id(library)
        self._answer = _QueryResult()
        self._of_stream: dict[int, StreamBuffers] = {}
        self._making = threading.Lock()
        self._memory: list[Allocation] = []
        self._free = range(0)  # addresses of counters

    def find(self, stream: int) -> StreamBuffers:
        """Return the buffers for the next launch on the stream with that handle.

        Raises :class:`~matmill.errors.LaunchError` if the driver knows no such stream, or has no memory.
        """
        if not stream:
            return self._of_stream.get(_DEFAULT) or self._make(_DEFAULT)
        gpu, answer = self._gpu, self._answer
        entered = gpu.enter()
        try:
            answer.value.value = 0  # the driver writes 32 bits of it
            gpu.check(self._is_capturing(stream, answer.address), "cuStreamIsCapturing")
            if answer.value.value:
                return 0, self._counter()
            # By the driver's number, which is never reused: a handle may be, while work of its former stream is in
            # flight.
            gpu.check(self._stream_id(stream, answer.address), "cuStreamGetId")
            number = answer.value.value
            return self._of_stream.get(number) or self._make(number)
        finally:
            if entered:
                gpu.leave()

    def _make(self, number: int) -> StreamBuffers:
        """Create the buffers for a new stream; two threads may do so at the same time."""
        counter = self._counter()
        with self._making:
            if number not in self._of_stream:
                workspace = self._zeros(MOST_ADDED_BY_ONE) if len(self._of_stream) < _MOST_WORKSPACES else 0
                self._of_stream[number] = workspace, counter
            return self._of_stream[number]

    def _counter(self) -> int:
        """Return the address of an unused counter."""
        with self._making:
            if not self._free:
                first = self._zeros(_SLAB)
                self._free = range(first, first + _SLAB, _WORD)
            address, self._free = self._free[0], self._free[1:]
            return address

    def _zeros(self, nbytes: int) -> int:
        memory = self._gpu.zeros(nbytes)
        self._memory.append(memory)
        return memory.address


@cache
def scratch(gpu: GPU) -> Scratch:
    """Return the scratch of ``gpu``, always the same object."""
    return Scratch(gpu)
