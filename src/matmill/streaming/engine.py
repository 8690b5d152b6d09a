"""D = alpha * E @ F + beta * C for E and F on the host, whatever their size, through a few buffers of fixed size.

| who            | waits for                                   | does                                         |
|----------------|---------------------------------------------|----------------------------------------------|
| reader threads | a buffer handed to them                     | pack a chunk of E and F into it              |
| copy stream    | the buffer's last sum (``summed``)          | page-locked buffer to device buffer          |
| compute stream | the buffer's copy (``copied``)              | total += E_chunk @ F_chunk                   |
| host           | the readers; the copy before the latest one | enqueues, hands the freed buffer to readers  |

Chunks are added in their order on one stream, so the same plan gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from os import cpu_count
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.errors import LaunchError
from matmill.kernel import GemmOperands
from matmill.launch import Pointer
from matmill.problem import Gemm
from matmill.streaming.device import Bytes, Device
from matmill.streaming.plan import BUFFERS, Chunk, StreamPlan
from matmill.streaming.sources import MatrixSource
from matmill.streaming.steps import Launches, Steps

#: Called with the bytes of E and F that have been read, and with all of them.
Progress: TypeAlias = Callable[[int, int], None]

#: More threads than this only wait for the same memory.
_MOST_READERS = 8
_NOWHERE = Pointer("none", 0)


def stream_inner(
    device: Device,
    plan: StreamPlan,
    steps: Steps,
    e: NDArray[Any],
    f: NDArray[Any],
    *,
    c: NDArray[Any] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    progress: Progress | None = None,
) -> NDArray[Any]:
    """Return ``alpha * e @ f + beta * c`` as a fresh array (m, n), for E (m, k), F (k, n), C (m, n) of one dtype.

    Strides may be anything. ``f`` is not read if the plan is for a Gram matrix, ``c`` not if beta is 0 or it is None,
    ``e`` and ``f`` not if alpha is 0. Page-locked memory on the host is at most the plan's budget and twice the size of
    D.

    On any error, threads are joined and all memory is freed before this raises: :class:`~matmill.errors.LaunchError`
    for the GPU and for memory, :class:`~matmill.errors.TruncatedFileError` and ``OSError`` for files, and what
    ``progress`` raises.
    """
    # Threads and streams stop before the memory that they use is freed.
    with _Held() as memory, _Held() as work:
        stream = _StreamedProduct(memory, work, device, plan, steps)
        return stream.run(e, f, c=c if beta else None, alpha=alpha, beta=beta, progress=progress)


class _Held(ExitStack[None]):
    """Resources to be released. After an error, failing driver calls only repeat it, and are not raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        except LaunchError:
            if error is None:
                raise


@dataclass(frozen=True)
class _Buffer:
    """Page-locked memory and its counterpart on the device; events ``copied`` and ``summed`` mark their latest use."""

    host: Bytes
    address: int
    copied: Any
    summed: Any


class _StreamedProduct:
    """One product in flight."""

    def __init__(self, memory: _Held, work: _Held, device: Device, plan: StreamPlan, steps: Steps) -> None:
        self._memory = memory
        self._work = work
        self._device = device
        self._plan = plan
        self._steps = steps
        self._launches: dict[tuple[int, int], Launches] = {}

    def run(
        self,
        e: NDArray[Any],
        f: NDArray[Any],
        *,
        c: NDArray[Any] | None,
        alpha: float,
        beta: float,
        progress: Progress | None,
    ) -> NDArray[Any]:
        """Return the result in new memory."""
        plan, device = self._plan, self._device
        result = np.empty((plan.m, plan.n), plan.dtype.numpy)
        if not result.size:
            return result
        compute = self._stream()
        sums = plan.m * plan.n * plan.dtype.accumulator.itemsize
        total = Pointer("total", self._allocate(sums))
        device.clear(total.address, sums, compute)
        added = plan.chunk(0).problem if alpha and plan.k else None
        if added is not None:
            self._accumulate(e, f, total, compute, progress)
        outcome = self._pin(result.nbytes)
        d = Pointer("D", self._allocate(result.nbytes))
        addend = _NOWHERE if c is None else self._upload(c, compute)
        problem = Gemm(m=plan.m, n=plan.n, k=plan.k, dtype=plan.dtype, gram=plan.gram, has_c=c is not None)
        operands = GemmOperands(_NOWHERE, _NOWHERE, addend, d, alpha, 0.0 if c is None else beta)
        for binary, launch in self._steps.finish(problem, added, operands, total):
            device.launch(binary, launch, compute)
        device.copy_out(outcome, d.address, compute)
        device.drain(compute)
        result.reshape(-1).view(np.uint8)[:] = outcome
        return result

    def _accumulate(
        self, e: NDArray[Any], f: NDArray[Any], total: Pointer, compute: Any, progress: Progress | None
    ) -> None:
        plan, device = self._plan, self._device
        count = plan.count
        buffers = [self._buffer() for _ in range(min(BUFFERS, count))]
        needed = max(self._steps.workspace(plan.chunk(index).problem) for index in {0, count - 1})
        workspace = Pointer("workspace", self._allocate(needed)) if needed else None
        copies = self._stream()
        readers = _Readers(self._work, plan, e, f)
        done = 0
        if progress is not None:
            progress(done, plan.payload)
        for index, buffer in enumerate(buffers):
            readers.start(index, buffer.host)
        for index in range(count):
            readers.join()
            chunk, slot = plan.chunk(index), index % len(buffers)
            buffer = buffers[slot]
            device.after(buffer.summed, copies)
            device.copy_in(buffer.address, buffer.host[: chunk.nbytes], copies)
            device.record(buffer.copied, copies)
            device.after(buffer.copied, compute)
            for binary, launch in self._add(slot, chunk, buffer, total, workspace):
                device.launch(binary, launch, compute)
            device.record(buffer.summed, compute)
            # One copy stays in flight while the host waits for the one before it.
            last, following = index - 1, index - 1 + len(buffers)
            if last >= 0 and following < count:
                free = buffers[last % len(buffers)]
                device.wait(free.copied)
                readers.start(following, free.host)
            done += plan.payload_of(chunk.stop - chunk.start)
            if progress is not None:
                progress(done, plan.payload)

    def _add(self, slot: int, chunk: Chunk, buffer: _Buffer, total: Pointer, workspace: Pointer | None) -> Launches:
        key = slot, chunk.problem.k
        if key not in self._launches:
            e = Pointer("E", buffer.address)
            f = e if chunk.f is None else Pointer("F", buffer.address + chunk.f.offset)
            operands = GemmOperands(e, f, _NOWHERE, _NOWHERE, workspace=workspace)
            self._launches[key] = self._steps.add(chunk.problem, operands, total)
        return self._launches[key]

    def _upload(self, c: NDArray[Any], compute: Any) -> Pointer:
        packed = np.ascontiguousarray(c).reshape(-1).view(np.uint8)
        memory = self._pin(packed.nbytes)
        memory[:] = packed
        pointer = Pointer("C", self._allocate(packed.nbytes))
        self._device.copy_in(pointer.address, memory, compute)
        return pointer

    def _buffer(self) -> _Buffer:
        size = self._plan.buffer_bytes
        return _Buffer(self._pin(size), self._allocate(size), self._event(), self._event())

    def _pin(self, nbytes: int) -> Bytes:
        memory = self._device.pin(nbytes)
        self._memory.callback(self._device.unpin, memory)
        return memory

    def _allocate(self, nbytes: int) -> int:
        address = self._device.allocate(nbytes)
        self._memory.callback(self._device.free, address)
        return address

    def _event(self) -> Any:
        event = self._device.event()
        self._memory.callback(self._device.end_event, event)
        return event

    def _stream(self) -> Any:
        stream = self._device.stream()
        self._work.callback(self._device.end_stream, stream)
        self._work.callback(self._device.drain, stream)
        return stream


class _Readers:
    """Threads that pack chunks into page-locked buffers, in the order in which they are started."""

    def __init__(self, held: _Held, plan: StreamPlan, e: NDArray[Any], f: NDArray[Any]) -> None:
        self._plan = plan
        self._sources = [MatrixSource(e, "e")] if plan.gram else [MatrixSource(e, "e"), MatrixSource(f.T, "f")]
        for source in self._sources:
            held.callback(source.close)
        self._bits = np.dtype(f"u{plan.dtype.itemsize}")
        self._pool = ThreadPoolExecutor(min(_MOST_READERS, cpu_count() or 1), "matmill-stream")
        held.callback(self._stop)
        self._in_flight: deque[list[Future[None]]] = deque()

    def start(self, index: int, buffer: Bytes) -> None:
        """Start packing chunk ``index`` into ``buffer``."""
        chunk = self._plan.chunk(index)
        numbers = buffer[: chunk.nbytes].view(self._bits)
        reads = [
            self._pool.submit(source.read, target, part)
            for source, packed in zip(self._sources, (chunk.e, chunk.f), strict=False)
            if packed is not None
            for target, part in source.pieces(chunk.start, chunk.stop, packed, numbers)
        ]
        self._in_flight.append(reads)

    def join(self) -> None:
        """Wait for the oldest chunk that was started and not joined, and raise its read error, if any."""
        for read in self._in_flight[0]:
            read.result()
        self._in_flight.popleft()

    def _stop(self) -> None:
        """Cancel the reads that have not started and wait for those in flight.

        An interrupt meanwhile is raised after they have ended: the memory that they write to is freed next.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        running = [read for reads in self._in_flight for read in reads if not read.cancelled()]
        interrupt = None
        # Not by joining the threads: Python 3.11 considers a thread ended if its join was interrupted.
        while running:
            try:
                wait(running)
                running = []
            except KeyboardInterrupt as another:
                interrupt = another
        self._pool.shutdown()
        if interrupt is not None:
            raise interrupt
