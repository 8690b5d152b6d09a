"""A clock that finds L2 cold and clean, by reading a long buffer before each run.

A flush that writes, as that of :class:`~matmill.runtime.clock.Clock`, leaves L2 full of bytes that are still to be
written back. Whatever runs next evicts them, and memory writes them meanwhile: 50 MB on an H200, 10 us. Products
of a long k, which only read, and transpose_add are timed after a flush that only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lab.enqueue import enqueuer
from matmill.bench.probe.samples import Runs
from matmill.kernels.probe import buffers
from matmill.kernels.probe.stream import READ, VECTOR, Stream
from matmill.runtime.clock import Clock, StreamHandle
from matmill.runtime.gpu import GPU

#: Bytes that are read: a millisecond on an H200, 70 times its L2.
_READ_BYTES = 4 * 2**30


class CleanClock(Clock):
    """A clock that reads a buffer before each timed run, by ``flush``, and so keeps the GPU busy meanwhile as well."""

    def __init__(self, gpu: GPU, flush: Callable[[StreamHandle], None]) -> None:
        super().__init__(gpu, 0)
        self._flush = flush

    def _before(self, _run: Callable[[StreamHandle], None]) -> None:
        """Leave the cache cold, whatever is run."""
        self._flush(self.stream)


@contextmanager
def clean_clock(gpu: GPU) -> Iterator[CleanClock]:
    """Open a clean clock with a buffer of its own to read."""
    with (
        Runs(gpu) as runs,
        gpu.empty(_READ_BYTES) as buffer,
        gpu.empty(4 * gpu.arch.sms * gpu.arch.threads_per_sm) as sums,
    ):
        problem = Stream(_READ_BYTES // VECTOR, runs.resident(READ))
        operands = buffers(buffer.pointer("read"), sums.pointer("sums"))
        flush = enqueuer(gpu, [(runs.binary(READ), READ.launch(problem, operands))])
        with CleanClock(gpu, flush) as clock:
            yield clock
