"""Device memory of each stream: a counter in which a launch counts its blocks, and a workspace for their partial sums.

Launches of one stream follow each other, so they share one allocation, and a call allocates nothing. A captured graph
may be launched on any stream, beside others: every launch in it has a counter of its own, for the life of the process,
and a workspace that its caller brings.
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

#: Addresses of a workspace, 0 where the caller has to bring it, and of a counter, which is 0 between launches.
StreamBuffers: TypeAlias = tuple[int, int]

#: Bytes from counter to counter, so that what follows one is aligned; and those allocated at a time.
_WORD, _SLAB = 16, 64 * 1024
#: Streams that have a workspace; a program with more makes and drops streams, and would never use theirs again.
_MOST_WORKSPACES = 64
#: In place of a number for the default stream, which no graph captures, so that nothing is asked of it.
_DEFAULT = -1


class _Answer(threading.local):
    """Where the driver writes what a thread asks of a stream."""

    def __init__(self) -> None:
        self.value = ctypes.c_uint64()
        self.address = ctypes.addressof(self.value)


class Scratch:
    """Workspace and counter for each stream of a GPU."""

    def __init__(self, gpu: GPU) -> None:
        library = load()
        self._gpu = gpu
        self._is_capturing, self._stream_id = is_capturing(library), stream_id(library)
        self._answer = _Answer()
        self._of_stream: dict[int, StreamBuffers] = {}
        self._making = threading.Lock()
        self._memory: list[Allocation] = []
        self._free = range(0)  # addresses of counters

    def find(self, stream: int) -> StreamBuffers:
        """Find the buffers for the next launch on the stream with that handle.

        Raises :class:`~matmill.errors.LaunchError` where the driver knows no such stream, or has no memory.
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
            # By a number that no later stream gets: a handle may come again while work of its last stream goes on.
            gpu.check(self._stream_id(stream, answer.address), "cuStreamGetId")
            number = answer.value.value
            return self._of_stream.get(number) or self._make(number)
        finally:
            if entered:
                gpu.leave()

    def _make(self, number: int) -> StreamBuffers:
        """Make the buffers for a stream that was not met before, by two threads at a time perhaps."""
        counter = self._counter()
        with self._making:
            if number not in self._of_stream:
                workspace = self._zeros(MOST_ADDED_BY_ONE) if len(self._of_stream) < _MOST_WORKSPACES else 0
                self._of_stream[number] = workspace, counter
            return self._of_stream[number]

    def _counter(self) -> int:
        """Return one that nobody has."""
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
    """Return that of ``gpu``, the same object every time."""
    return Scratch(gpu)
