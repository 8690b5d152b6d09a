"""Timing on the GPU: events around each run, cold L2, settled clocks, competitors interleaved.

One measurement holds all competitors, because a GPU under a power limit runs 10-20% faster one minute than the next:
only interleaved times compare. Each round visits the competitors in a fresh random order. Before each timed run a
buffer much larger than the L2 cache is written, so that no competitor finds its inputs there. The flush also keeps the
GPU busy while the host enqueues the run, which keeps launch latency out of the time between the events.

A GPU is needed only when a :class:`Clock` is created.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from matmill.arch import Arch
from matmill.runtime.gpu import GPU

_LEAST_ROUNDS = 3
_LONG = 0.1  # seconds: from here on set-up does not matter
_FLUSH_BYTE = 0x5A
#: Passes over the buffer. One over twice an H200's L2 takes 26 µs, less than a framework needs to enqueue a call:
#: torch.mm then appeared to take 129 µs for a product of 1024 cubed, and takes 65.
_FLUSHES = 8


@dataclass(frozen=True)
class StreamHandle:
    """A CUDA stream by its handle, with the ``__cuda_stream__`` protocol."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


@dataclass(frozen=True)
class Timing:
    """The seconds of one competitor: the median of ``rounds`` runs, the fastest and the slowest."""

    median: float
    best: float
    worst: float
    rounds: int


@dataclass(frozen=True)
class Competitor:
    """A function to time: ``run`` enqueues it once on a stream and returns without waiting."""

    name: str
    run: Callable[[StreamHandle], None]


def flush_bytes(arch: Arch, *, cold: bool) -> int:
    """Return the bytes of the buffer that a clock on ``arch`` writes before each timed run: 8 L2 caches, or none.

    Eight passes over it take far longer than emptying the cache needs; the host enqueues the run meanwhile.
    """
    return 8 * arch.l2_bytes if cold else 0


class Clock:
    """A stream, a pair of events and a flush buffer on one GPU; use as a context manager.

    ``flush_bytes`` is written before each timed run (see :func:`flush_bytes`); 0 keeps the cache warm: each timed run
    then follows an untimed one, so that the cache holds its data.
    """

    def __init__(self, gpu: GPU, flush_bytes: int) -> None:
        self._gpu = gpu
        # First, because it may fail, and then nothing else must be freed.
        self._scratch = gpu.empty(flush_bytes) if flush_bytes else None
        self._stream = gpu.call("cuStreamCreate", 0)
        self._events = [gpu.call("cuEventCreate", 0), gpu.call("cuEventCreate", 0)]
        self.stream = StreamHandle(int(self._stream))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free stream, events and buffer; call it once."""
        for event in self._events:
            self._gpu.call("cuEventDestroy", event)
        if self._scratch is not None:
            self._scratch.close()
        self._gpu.call("cuStreamDestroy", self._stream)

    def once(self, run: Callable[[StreamHandle], None]) -> float:
        """Return the seconds of one run on the GPU, after a flush."""
        call = self._gpu.call
        start, stop = self._events
        self._before(run)
        call("cuEventRecord", start, self._stream)
        run(self.stream)
        call("cuEventRecord", stop, self._stream)
        call("cuEventSynchronize", stop)
        return float(call("cuEventElapsedTime", start, stop)) / 1e3

    def _before(self, run: Callable[[StreamHandle], None]) -> None:
        """Put the cache into the state for a timed run."""
        if self._scratch is None:
            run(self.stream)
            return
        for _ in range(_FLUSHES):
            self._gpu.call("cuMemsetD8Async", self._scratch.address, _FLUSH_BYTE, self._scratch.nbytes, self._stream)

    def compare(
        self,
        competitors: Sequence[Competitor],
        *,
        seconds_each: float = 0.3,
        most_rounds: int = 40,
        settle: float = 0.5,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Timing]:
        """Time all competitors interleaved, in one run, and return their timings in the same order.

        Each gets as many rounds as fit in ``seconds_each`` (between 3 and ``most_rounds``), spread evenly over the
        whole run. ``settle`` seconds of work come first, so that the clocks have risen and then reached their limit.
        """
        if not competitors:
            return []
        first = [self._estimate(c) for c in competitors]
        wanted = [min(most_rounds, max(_LEAST_ROUNDS, int(seconds_each / t))) for t in first]
        self._settle(competitors, first, settle)
        samples: list[list[float]] = [[] for _ in competitors]
        order = random.Random(seed)  # noqa: S311 — an order, not a secret
        rounds = max(wanted)
        for turn in range(rounds):
            present = [i for i, w in enumerate(wanted) if (turn + 1) * w // rounds > turn * w // rounds]
            order.shuffle(present)
            for i in present:
                samples[i].append(self.once(competitors[i].run))
            if progress is not None:
                progress(turn + 1, rounds)
        return [Timing(statistics.median(s), min(s), max(s), len(s)) for s in samples]

    def _estimate(self, competitor: Competitor) -> float:
        """Return the seconds of a second run, because the first one loads code and sets libraries up.

        A long first run counts, though.
        """
        first = self.once(competitor.run)
        return max(first if first > _LONG else self.once(competitor.run), 1e-6)

    def _settle(self, competitors: Sequence[Competitor], seconds: Sequence[float], budget: float) -> None:
        """Keep the GPU at work for ``budget`` seconds with the fastest competitor, the one that draws most power."""
        fastest = competitors[min(range(len(seconds)), key=seconds.__getitem__)]
        end = time.perf_counter() + budget
        while time.perf_counter() < end:
            self.once(fastest.run)
