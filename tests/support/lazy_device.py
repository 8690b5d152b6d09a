"""A device for streaming that is made of host memory and as late as it may be, and the kernel's part in NumPy.

What is enqueued runs when somebody waits for it, or by chance before: code that forgets to wait finds wrong numbers.
New memory is NaN, memory in use cannot be given back, and any call can be made to fail.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import ALL
from matmill.errors import LaunchError
from matmill.jit.compile import Binary
from matmill.kernel import GemmOperands
from matmill.launch import Launch, Pointer
from matmill.problem import Gemm
from matmill.streaming import Steps

Bytes = NDArray[np.uint8]

#: Calls that give back: they are made after a failure and do not start one.
CLEANUP = {"unpin", "free", "end_stream", "end_event", "drain"}


@dataclass(eq=False)
class Stream:
    """Work in order: ``issued`` counts all of it, ``done`` what has run."""

    queue: deque[Callable[[], None]] = field(default_factory=deque)
    issued: int = 0
    done: int = 0

    def reach(self, count: int) -> None:
        """Run the work until that much of it is done."""
        while self.done < count:
            work = self.queue.popleft()
            self.done += 1
            work()


@dataclass(eq=False)
class Event:
    """A place on a stream, or None where it was never recorded."""

    mark: tuple[Stream, int] | None = None


class LazyDevice:
    """See the module. ``fail_at`` numbers the call that raises ``failure``; ``sticky`` lets all later calls fail."""

    def __init__(
        self, seed: int = 0, *, fail_at: int = -1, failure: BaseException | None = None, sticky: bool = False
    ) -> None:
        self.calls: list[str] = []
        self.most_pinned = 0
        self._random = random.Random(seed)  # noqa: S311 — chance, not a secret
        self._fail_at = fail_at
        self._failure = failure
        self._sticky = sticky
        self._memory: dict[int, Bytes] = {}
        self._pinned: dict[int, Bytes] = {}
        self._streams: list[Stream] = []
        self._events: list[Event] = []

    def rests(self) -> bool:
        """Tell whether all was given back and no thread is left."""
        return not (self._memory or self._pinned or self._streams or self._events or readers())

    def _called(self, name: str) -> None:
        number = len(self.calls)
        self.calls.append(name)
        if self._failure is not None and number == self._fail_at:
            raise self._failure
        if self._sticky and number > self._fail_at:
            raise LaunchError(argument="GPU 0", got="an earlier failure", wanted="success", fix="None.")

    def _enqueue(self, name: str, stream: Stream, work: Callable[[], None]) -> None:
        self._called(name)
        stream.queue.append(work)
        stream.issued += 1
        if self._random.random() < 0.3:
            some = self._random.choice(self._streams)
            some.reach(self._random.randint(some.done, some.issued))

    def pin(self, nbytes: int) -> Bytes:
        """Return host memory."""
        self._called("pin")
        memory = np.full(nbytes, 0xFF, np.uint8)
        self._pinned[memory.ctypes.data] = memory
        self.most_pinned = max(self.most_pinned, sum(one.nbytes for one in self._pinned.values()))
        return memory

    def unpin(self, memory: Bytes) -> None:
        """Forget it."""
        self._called("unpin")
        self._check_idle()
        del self._pinned[memory.ctypes.data]

    def allocate(self, nbytes: int) -> int:
        """Return memory that kernels use, aligned as a GPU's is."""
        self._called("allocate")
        room = np.full(nbytes + 256, 0xFF, np.uint8)
        memory = room[-room.ctypes.data % 256 :][:nbytes]
        return self._hold(memory, memory.ctypes.data)

    def _hold(self, memory: Bytes, address: int) -> int:
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        """Forget it."""
        self._called("free")
        self._check_idle()
        del self._memory[address]

    def _check_idle(self) -> None:
        assert not any(stream.queue for stream in self._streams), "memory was given back under work that uses it"
        assert not readers(), "memory was given back under threads that use it"

    def stream(self) -> Stream:
        """Return a stream."""
        self._called("stream")
        self._streams.append(Stream())
        return self._streams[-1]

    def end_stream(self, stream: Stream) -> None:
        """Forget it."""
        self._called("end_stream")
        self._streams.remove(stream)

    def event(self) -> Event:
        """Return an event."""
        self._called("event")
        self._events.append(Event())
        return self._events[-1]

    def end_event(self, event: Event) -> None:
        """Forget it."""
        self._called("end_event")
        self._events.remove(event)

    def clear(self, address: int, nbytes: int, stream: Stream) -> None:
        """Fill with zeros."""
        self._enqueue("clear", stream, lambda: self._at(address, nbytes).fill(0))

    def copy_in(self, address: int, memory: Bytes, stream: Stream) -> None:
        """Copy from the host; the memory is read when the copy runs."""
        assert self._holds(memory)
        self._enqueue("copy_in", stream, lambda: np.copyto(self._at(address, memory.nbytes), memory))

    def copy_out(self, memory: Bytes, address: int, stream: Stream) -> None:
        """Copy to the host."""
        assert self._holds(memory)
        self._enqueue("copy_out", stream, lambda: np.copyto(memory, self._at(address, memory.nbytes)))

    def launch(self, binary: Binary, launch: Launch, stream: Stream) -> None:
        """Do what the launch stands for."""
        self._enqueue("launch", stream, lambda: self.run(binary, launch))

    def run(self, _binary: Binary, launch: Launch) -> None:
        """Run the kernel itself."""
        _KERNELS[launch.entry](self, launch)

    def record(self, event: Event, stream: Stream) -> None:
        """Mark the end of the stream."""
        self._called("record")
        event.mark = stream, stream.issued

    def after(self, event: Event, stream: Stream) -> None:
        """Let the stream wait for the mark as it is now."""
        mark = event.mark
        self._enqueue("after", stream, lambda: mark[0].reach(mark[1]) if mark else None)

    def wait(self, event: Event) -> None:
        """Run what the mark needs."""
        self._called("wait")
        if event.mark:
            event.mark[0].reach(event.mark[1])

    def drain(self, stream: Stream) -> None:
        """Run the whole stream."""
        stream.reach(stream.issued)
        self._called("drain")

    def _holds(self, memory: Bytes) -> bool:
        return any(np.shares_memory(memory, one) for one in self._pinned.values())

    def _at(self, address: int, nbytes: int) -> Bytes:
        for start, memory in self._memory.items():
            if start <= address and address + nbytes <= start + memory.nbytes:
                return memory[address - start :][:nbytes]
        message = f"{nbytes} bytes at {address:#x} are not the device's"
        raise AssertionError(message)

    def matrix(
        self, where: object, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> NDArray[Any]:
        """Return a matrix in device memory, by its strides in elements."""
        assert isinstance(where, Pointer)
        span = 1 + sum((int(extent) - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        flat = self._at(where.address, span * dtype.itemsize).view(dtype)
        return np.lib.stride_tricks.as_strided(flat, shape, tuple(dtype.itemsize * stride for stride in strides))


def readers() -> list[str]:
    """Return reader threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("matmill-stream")]


_NO_BINARY = cast(Binary, None)


def _launch(entry: str, problem: Gemm, *args: Pointer | np.generic) -> tuple[tuple[Binary, Launch], ...]:
    sizes = (np.int32(problem.m), np.int32(problem.n), np.int64(problem.k))
    return ((_NO_BINARY, Launch(problem.dtype.name, entry, (1, 1, 1), (32, 1, 1), (*args, *sizes))),)


def _add(problem: Gemm, operands: GemmOperands, total: Pointer) -> tuple[tuple[Binary, Launch], ...]:
    assert operands.workspace is not None
    for pointer, align in ((operands.a, problem.a_start_align), (operands.b, problem.b_start_align)):
        assert align
        assert pointer.address % align == 0
    strides = (np.int64(stride) for stride in (*problem.a_row_col, *problem.b_row_col))
    return _launch("add", problem, operands.a, operands.b, total, operands.workspace, *strides)


def _finish(
    problem: Gemm, _chunk: Gemm | None, operands: GemmOperands, total: Pointer
) -> tuple[tuple[Binary, Launch], ...]:
    wide = problem.dtype.accumulator
    scalars = (wide.scalar(operands.alpha), wide.scalar(operands.beta), np.int32(problem.has_c))
    return _launch("splitk_reduce", problem, total, operands.c, operands.d, *scalars)


def _run_add(device: LazyDevice, launch: Launch) -> None:
    e, f, total, workspace, *strides, m, n, k = cast(tuple[Any, ...], launch.args)
    dtype = ALL[launch.kernel]
    wide = dtype.accumulator.numpy
    e_row, e_column, f_row, f_column = (int(stride) for stride in strides)
    left = device.matrix(e, dtype.numpy, (m, k), (e_row, e_column)).astype(wide)
    right = device.matrix(f, dtype.numpy, (k, n), (f_row, f_column)).astype(wide)
    partial = device.matrix(workspace, wide, (m, n), (int(n), 1))
    partial[:] = left @ right
    device.matrix(total, wide, (m, n), (int(n), 1))[:] += partial


def _run_finish(device: LazyDevice, launch: Launch) -> None:
    total, c, d, alpha, beta, has_c, m, n, _k = cast(tuple[Any, ...], launch.args)
    dtype = ALL[launch.kernel]
    wide = dtype.accumulator.numpy
    result = alpha * device.matrix(total, wide, (m, n), (int(n), 1))
    if has_c:
        result += beta * device.matrix(c, dtype.numpy, (m, n), (int(n), 1)).astype(wide)
    device.matrix(d, dtype.numpy, (m, n), (int(n), 1))[:] = result.astype(dtype.numpy)


_KERNELS = {"add": _run_add, "splitk_reduce": _run_finish}

STEPS = Steps(workspace=lambda chunk: chunk.m * chunk.n * chunk.dtype.accumulator.itemsize, add=_add, finish=_finish)
