"""Latencies in cycles: dependent chains of arithmetic, and pointer chases through every level of memory.

H. Wong et al., "Demystifying GPU microarchitecture through microbenchmarking", ISPASS 2010; Z. Jia et al., "Dissecting
the NVIDIA Volta GPU architecture via microbenchmarking", 2018. Every figure is a difference between two runs that
differ only in the number of executions of one instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from matmill.bench.probe.samples import Runs, Spread, nonsense, sampled
from matmill.dtypes import F32, F64, DType
from matmill.kernel import Kernel
from matmill.kernels.probe import lengths, per_lane
from matmill.kernels.probe.chain import ADD, FMA, MULTIPLY, Chain
from matmill.kernels.probe.chase import (
    BEYOND_L1,
    GLOBAL,
    LINE,
    SHARED,
    WORD,
    WORDS,
    Chase,
    Ints,
    addresses,
    ends_at,
    offsets,
    ring,
)
from matmill.runtime.memory import Allocation

#: Rounds of 128 or 256 instructions, and of 32 or 64 loads.
_CHAIN_TRIPS, _CHASE_TRIPS = 256, 32
#: Trips of a chain that takes some milliseconds, to measure the clock.
_LONG_TRIPS = 20_000
#: Bytes of a ring that fits in L1 on every GPU, however much of it is shared memory.
_IN_L1 = 16 * 1024
_SEED = 2010


def chains(runs: Runs, name: str) -> Spread:
    """Return the latency of one kind of arithmetic: ``sigma_add``, ``sigma_mul``, ``sigma_fma`` or ``sigma_fma64``."""
    kernel, dtype = _CHAINS[name]
    short, long = lengths(kernel)
    problem = Chain(_CHAIN_TRIPS)
    more = _CHAIN_TRIPS * (long.config["LENGTH"] - short.config["LENGTH"])
    with _chain_values(runs, dtype) as values:

        def cycles(which: Kernel[Chain]) -> int:
            runs.seconds(which, problem, values, dtype=dtype)
            return int(runs.results(1, np.int64)[0])

        return sampled(name, lambda _turn: (cycles(long) - cycles(short)) / more)


def clock(runs: Runs) -> Spread:
    """Return the SMs' clock in Hz: cycles by their own counter over seconds by events, with one busy warp."""
    with _chain_values(runs, F32) as values:

        def both(trips: int) -> tuple[int, float]:
            taken = runs.seconds(FMA, Chain(trips), values)
            return int(runs.results(1, np.int64)[0]), taken

        def sample(_turn: int) -> float:
            (few, short), (many, long) = both(_LONG_TRIPS), both(2 * _LONG_TRIPS)
            return (many - few) / (long - short) if long != short else math.inf

        return sampled("clock_hz", sample)


def memory(runs: Runs) -> Spread:
    """Return ``sigma_g``: a load that misses L1 and L2, from a buffer of eight times L2's size.

    L2 is flushed before each run, and no two runs visit the same lines.
    """
    order = ring(8 * runs.arch.l2_bytes // LINE, _SEED)
    longest = 64 + _CHASE_TRIPS * 2 * GLOBAL.config["LENGTH"]

    def problem(run: int) -> Chase:
        return Chase(_CHASE_TRIPS, start=LINE * int(order[run * longest % len(order)]), warm=64)

    with _upload(runs, order) as buffer:
        return _chase(runs, "sigma_g", _Ring(GLOBAL, order, LINE, buffer), problem, cold=True)


def level2(runs: Runs) -> Spread:
    """Return ``sigma_l2``: a load that bypasses L1, from a buffer of a quarter of L2's size that was visited before."""
    order = ring(runs.arch.l2_bytes // 4 // LINE, _SEED)
    with _upload(runs, order) as buffer:
        problem = Chase(_CHASE_TRIPS, warm=len(order))
        return _chase(runs, "sigma_l2", _Ring(BEYOND_L1, order, LINE, buffer), lambda _run: problem)


def level1(runs: Runs) -> Spread:
    """Return ``sigma_l1``: a load from a buffer of 16 KiB that was visited before in the same launch."""
    order = ring(_IN_L1 // LINE, _SEED)
    with _upload(runs, order) as buffer:
        problem = Chase(_CHASE_TRIPS, warm=2 * len(order))
        return _chase(runs, "sigma_l1", _Ring(GLOBAL, order, LINE, buffer), lambda _run: problem)


def shared(runs: Runs) -> Spread:
    """Return ``sigma_s``: a load from shared memory."""
    order = ring(WORDS, _SEED)
    with runs.gpu.upload(offsets(order), "ring") as buffer:
        problem = Chase(_CHASE_TRIPS, warm=64)
        return _chase(runs, "sigma_s", _Ring(SHARED, order, WORD, buffer), lambda _run: problem)


_CHAINS: dict[str, tuple[Kernel[Chain], DType]] = {
    "sigma_add": (ADD, F32),
    "sigma_mul": (MULTIPLY, F32),
    "sigma_fma": (FMA, F32),
    "sigma_fma64": (FMA, F64),
}

#: Functions that measure the latencies, in the order of the measurements.
LATENCIES: dict[str, Callable[[Runs], Spread]] = {
    "clock_hz": clock,
    **{name: partial(chains, name=name) for name in _CHAINS},
    "sigma_s": shared,
    "sigma_l1": level1,
    "sigma_l2": level2,
    "sigma_g": memory,
}


@dataclass(frozen=True)
class _Ring:
    """A ring in a GPU's memory: the kernel that chases through it, its nodes' order, and the bytes between them."""

    kernel: Kernel[Chase]
    order: Ints
    stride: int
    buffer: Allocation


def _chase(runs: Runs, name: str, nodes: _Ring, problem: Callable[[int], Chase], *, cold: bool = False) -> Spread:
    """Return the cycles of one load.

    ``problem`` returns a chase for the number of the run; a sample takes two runs.
    """
    short, long = lengths(nodes.kernel)
    more = _CHASE_TRIPS * (long.config["LENGTH"] - short.config["LENGTH"])

    def cycles(which: Kernel[Chase], run: int) -> int:
        what = problem(run)
        runs.seconds(which, what, nodes.buffer, cold=cold)
        taken, end = runs.results(2, np.int64)
        wanted = ends_at(nodes.order, what, which.config, nodes.stride)
        if end != wanted:
            raise nonsense(name, f"a chase that ended {end} bytes into its ring", f"byte {wanted}")
        return int(taken)

    return sampled(name, lambda turn: (cycles(long, 2 * turn) - cycles(short, 2 * turn + 1)) / more)


def _chain_values(runs: Runs, dtype: DType) -> Allocation:
    # x + 0.75, x * 0.75 and 0.75 * x + 0.75 stay within float32, or end at 0, which is equally fast.
    return runs.gpu.upload(per_lane(dtype, 1.0, 0.75), "values")


def _upload(runs: Runs, order: Ints) -> Allocation:
    buffer = runs.gpu.empty(LINE * len(order))
    buffer.write(addresses(order, buffer.address))
    return buffer
