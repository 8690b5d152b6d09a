"""A clock that finds L2 cold and clean, and the kernel that reads a long buffer, which leaves it so.

A flush that writes, as that of :class:`~matmill.bench.timing.clock.Clock`, leaves L2 full of bytes that are still to be
written back. Whatever runs next evicts them, and memory writes them meanwhile: 50 MB on an H200, 10 us. Inner
products, which only read, and transpose_add are timed after a flush that only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from lab.enqueue import enqueuer
from matmill.bench.probe.samples import Runs
from matmill.bench.timing.clock import Clock, StreamHandle
from matmill.kernel import ceil_div
from matmill.kernels.probe import buffers
from matmill.kernels.probe.stream import READ, VECTOR, Stream
from matmill.launch import Pointer
from matmill.runtime.gpu import GPU
from matmill.runtime.memory import Allocation

READ_NAME = "read"


class Reading:
    """A long buffer and the kernel that reads it: the bandwidth that percentages refer to, and a flush."""

    name = READ_NAME
    #: Bytes that are read.
    nbytes = 4 * 2**30

    def __init__(self, runs: Runs) -> None:
        self._buffer: Allocation = runs.gpu.empty(self.nbytes)
        self._sums = runs.gpu.empty(4 * runs.arch.sms * runs.arch.threads_per_sm)
        self._runs = runs
        self.run = self.of(self.nbytes)

    def of(self, nbytes: int) -> Callable[[StreamHandle], None]:
        """Return what reads the first ``nbytes`` alone, in whole vectors; :meth:`run` leaves none of them in L2."""
        problem = Stream(ceil_div(nbytes, VECTOR), self._runs.resident(READ))
        operands = buffers(self._buffer.pointer("read"), Pointer("sums", self._sums.address))
        return enqueuer(self._runs.gpu, [(self._runs.binary(READ), READ.launch(problem, operands))])

    def close(self) -> None:
        """Free the buffer."""
        self._buffer.close()
        self._sums.close()


class CleanClock(Clock):
    """A clock that reads a buffer before each timed run, by ``flush``, and so keeps the GPU busy meanwhile as well.

    :meth:`Reading.run` is such a flush: a millisecond on an H200, 70 times its L2.
    """

    def __init__(self, gpu: GPU, flush: Callable[[StreamHandle], None]) -> None:
        super().__init__(gpu, 0)
        self._flush = flush

    def _before(self, _run: Callable[[StreamHandle], None]) -> None:
        """Leave the cache cold, whatever is run."""
        self._flush(self.stream)


@contextmanager
def clean_clock(gpu: GPU) -> Iterator[CleanClock]:
    """Open a clean clock with a buffer of its own to read."""
    with Runs(gpu) as runs, closing(Reading(runs)) as reading, CleanClock(gpu, reading.run) as clock:
        yield clock
