"""Rates: FMAs of every kind, bandwidths of memory, L2 and shared memory, and the cost of a launch.

Rates of arithmetic, L2 and shared memory are differences: the additional work of a longer run over its additional time,
so that launch, loop and tail cancel. Bandwidths of memory are those of whole runs over a long buffer with a cold L2, as
in a program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from matmill.bench.probe.samples import Runs, Spread, fitted, nonsense, per_difference, sampled
from matmill.dtypes import F32, F64, DType
from matmill.kernel import Kernel
from matmill.kernels.probe import buffers, lengths, per_lane
from matmill.kernels.probe.empty import EMPTY
from matmill.kernels.probe.fma import CHAINS, OUTER, MultiplyAdds
from matmill.kernels.probe.matrix import INPUTS, MatrixProducts, matrix, words
from matmill.kernels.probe.shared import READ as READ_SHARED
from matmill.kernels.probe.shared import SharedReads
from matmill.kernels.probe.stream import COPY, READ, READ_L2, VECTOR, WRITE, Stream, orderly
from matmill.runtime.clock import StreamHandle
from matmill.runtime.memory import Allocation

#: Bytes of a buffer for timed reads, unless a quarter of the free memory is less.
_LONG_BUFFER = 4 * 2**30
#: Launches in a row, in two runs: the first launches cancel out. More would take longer than the flush before them.
_FEW, _MANY = 50, 150
_FILL = 0x5A
_FILLED = 0x5A5A5A5A


def multiply_adds(runs: Runs, name: str) -> Spread:
    """Return ``fma_flops``, ``fma_outer_flops`` or ``fma64_flops``."""
    kernel, dtype = _MULTIPLY_ADDS[name]
    short, long = lengths(kernel)
    blocks = runs.resident(long, dtype)
    with runs.gpu.upload(per_lane(dtype, 0.75, 0.3), "values") as values:

        def seconds(which: Kernel[MultiplyAdds], trips: int) -> float:
            return runs.seconds(which, MultiplyAdds(trips, blocks), values, dtype=dtype)

        problem = MultiplyAdds(fitted(partial(seconds, short)), blocks)
        rate = per_difference(problem.operations(long.config), problem.operations(short.config))
        return sampled(name, lambda _turn: rate(seconds(long, problem.trips), seconds(short, problem.trips)))


def matrix_products(runs: Runs, element: str) -> Spread | None:
    """Return the rate of mma.sync on A and B of that type, or None for a GPU without such an instruction."""
    short, long = lengths(matrix(element, runs.arch))
    if short.why_not(MatrixProducts(element, 1, 1), runs.arch) is not None:
        return None
    blocks = runs.resident(long)
    with runs.gpu.upload(words(element, 1.0, 1.0), "words") as values:

        def seconds(which: Kernel[MatrixProducts], trips: int) -> float:
            return runs.seconds(which, MatrixProducts(element, trips, blocks), values)

        problem = MatrixProducts(element, fitted(partial(seconds, short)), blocks)
        rate = per_difference(problem.operations(long.config), problem.operations(short.config))
        name = f"matrix_flops, {element}"
        return sampled(name, lambda _turn: rate(seconds(long, problem.trips), seconds(short, problem.trips)))


def shared_reads(runs: Runs) -> Spread:
    """Return ``shared_bytes_per_s`` of all SMs together."""
    short, long = lengths(READ_SHARED)
    blocks = runs.resident(long)

    def seconds(which: Kernel[SharedReads], trips: int) -> float:
        return runs.seconds(which, SharedReads(trips, blocks))

    problem = SharedReads(fitted(partial(seconds, short)), blocks)
    rate = per_difference(problem.nbytes(long.config), problem.nbytes(short.config))
    return sampled(
        "shared_bytes_per_s", lambda _turn: rate(seconds(long, problem.trips), seconds(short, problem.trips))
    )


def level2_reads(runs: Runs) -> Spread:
    """Return ``l2_bytes_per_s``: a buffer of a third of L2's size, read repeatedly, bypassing L1."""
    vectors = runs.arch.l2_bytes // 3 // VECTOR
    blocks = runs.resident(READ_L2)
    with runs.gpu.empty(VECTOR * vectors) as buffer:
        buffer.fill_bytes(_FILL)

        def seconds(passes: int) -> float:
            return runs.seconds(READ_L2, Stream(vectors, blocks, passes), buffer)

        passes = fitted(seconds)
        rate = per_difference(*(Stream(vectors, blocks, n * passes).nbytes for n in (2, 1)))
        result = sampled("l2_bytes_per_s", lambda _turn: rate(seconds(2 * passes), seconds(passes)))
        _demand_sum(runs, "l2_bytes_per_s", Stream(vectors, blocks, passes))
    return result


def reads(runs: Runs) -> Spread:
    """Return ``read_bytes_per_s`` of memory."""
    problem = Stream(_long_vectors(runs), runs.resident(READ))
    with _filled(runs, problem) as buffer:
        result = sampled(
            "read_bytes_per_s", lambda _turn: problem.nbytes / runs.seconds(READ, problem, buffer, cold=True)
        )
        _demand_sum(runs, "read_bytes_per_s", problem)
    return result


def copies(runs: Runs) -> Spread:
    """Return ``copy_bytes_per_s`` of memory, read and written bytes together."""
    problem = orderly(_long_vectors(runs))
    with _filled(runs, problem) as source, runs.gpu.empty(problem.nbytes) as target:

        def sample(_turn: int) -> float:
            return 2 * problem.nbytes / runs.seconds(COPY, problem, source, written=target, cold=True)

        return sampled("copy_bytes_per_s", sample)


def writes(runs: Runs) -> Spread:
    """Return ``write_bytes_per_s`` of memory."""
    problem = orderly(_long_vectors(runs))
    with runs.gpu.empty(problem.nbytes) as target:

        def sample(_turn: int) -> float:
            return problem.nbytes / runs.seconds(WRITE, problem, written=target, cold=True)

        return sampled("write_bytes_per_s", sample)


def launches(runs: Runs) -> Spread:
    """Return ``launch_seconds``: from the start of one empty kernel to the start of the next in a row.

    The row waits behind a flush of L2, so that the host has enqueued it before its first kernel starts.
    """
    row = _EmptyKernels(runs)

    def sample(_turn: int) -> float:
        many, few = (runs.cold.once(partial(row.enqueue, count=count)) for count in (_MANY, _FEW))
        return (many - few) / (_MANY - _FEW)

    return sampled("launch_seconds", sample)


def enqueues(runs: Runs) -> Spread:
    """Return ``enqueue_seconds``: the host's time for one launch of a prepared kernel."""
    row = _EmptyKernels(runs)

    def sample(_turn: int) -> float:
        runs.gpu.synchronize()
        begin = time.perf_counter()
        row.enqueue(runs.warm.stream, _MANY)
        return (time.perf_counter() - begin) / _MANY

    return sampled("enqueue_seconds", sample)


_MULTIPLY_ADDS: dict[str, tuple[Kernel[MultiplyAdds], DType]] = {
    "fma_flops": (CHAINS, F32),
    "fma_outer_flops": (OUTER, F32),
    "fma64_flops": (CHAINS, F64),
}

#: Functions that measure the rates, in the order of the measurements.
RATES: dict[str, Callable[[Runs], Spread]] = {
    **{name: partial(multiply_adds, name=name) for name in _MULTIPLY_ADDS},
    "shared_bytes_per_s": shared_reads,
    "l2_bytes_per_s": level2_reads,
    "read_bytes_per_s": reads,
    "copy_bytes_per_s": copies,
    "write_bytes_per_s": writes,
    "launch_seconds": launches,
    "enqueue_seconds": enqueues,
}

#: The same for the tensor cores, by the type of A and B.
MATRIX_RATES: dict[str, Callable[[Runs], Spread | None]] = {
    element: partial(matrix_products, element=element) for element in INPUTS
}


class _EmptyKernels:
    """A row of empty kernels, launched one after another."""

    def __init__(self, runs: Runs) -> None:
        launch = EMPTY.launch(None, buffers())
        self._gpu = runs.gpu
        self._prepared = runs.gpu.prepare(runs.binary(EMPTY), launch)
        self._frame = runs.gpu.frame((launch,))

    def enqueue(self, stream: StreamHandle, count: int) -> None:
        """Launch ``count`` empty kernels on the stream without waiting."""
        self._frame.bind((), stream.address)
        (call,) = self._frame.calls
        for _ in range(count):
            self._prepared(*call)


def _long_vectors(runs: Runs) -> int:
    runs.gpu.synchronize()
    free = int(runs.gpu.call("cuMemGetInfo"))
    return min(_LONG_BUFFER, free // 4) // VECTOR


def _filled(runs: Runs, problem: Stream) -> Allocation:
    buffer = runs.gpu.empty(problem.nbytes)
    buffer.fill_bytes(_FILL)
    return buffer


def _demand_sum(runs: Runs, name: str, problem: Stream) -> None:
    """Check that the latest run read everything, by the sum of all words modulo 2**32."""
    threads = problem.blocks * READ.config["THREADS"]
    got = int(runs.results(threads, np.uint32).sum(dtype=np.uint64)) % 2**32
    wanted = _FILLED * (problem.nbytes // 4) % 2**32
    if got != wanted:
        raise nonsense(name, f"words that sum to {got:#x}", f"{wanted:#x}, if all are read")
