"""Runs of the probe kernels on a GPU, and the median and spread of several runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from matmill.arch import Arch
from matmill.dtypes import F32, DType
from matmill.errors import MatmillError
from matmill.jit.compile import Binary, compile_source
from matmill.jit.source import generate
from matmill.kernel import Kernel, P
from matmill.kernels.probe import buffers
from matmill.launch import Pointer
from matmill.runtime.clock import Clock, flush_bytes
from matmill.runtime.gpu import GPU
from matmill.runtime.memory import Allocation

#: Samples of every figure.
ROUNDS = 9
#: Seconds that a timed run should take: long compared with a launch and with the half microsecond of events.
RUN = 4e-3
_TRIAL = 50


@dataclass(frozen=True)
class Spread:
    """The median of several samples of one figure, the least and the greatest, all in the figure's unit."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, name: str, samples: Sequence[float]) -> Spread:
        """Return the spread. Raises :class:`~matmill.errors.MatmillError` unless the median of ``name`` is positive."""
        spread = cls(statistics.median(samples), min(samples), max(samples))
        if not 0 < spread.median < math.inf:
            raise nonsense(name, f"{spread.median:.6g}, from samples of {spread.least:.6g} to {spread.greatest:.6g}")
        return spread


def nonsense(figure: str, got: str, wanted: str = "a positive number") -> MatmillError:
    """Return the error for an impossible figure."""
    return MatmillError(
        argument=f"probe of {figure}",
        got=got,
        wanted=wanted,
        fix="Something else may run on this GPU: stop it, and probe again.",
    )


class Runs:
    """One GPU with one clock for a cold and one for a warm L2, and memory for results; a context manager."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.arch = gpu.arch
        # A sum, or a cycle count and 32 values: no kernel writes more than 8 bytes per resident thread.
        self._results = gpu.empty(8 * self.arch.sms * self.arch.threads_per_sm)
        self.cold = Clock(gpu, flush_bytes(self.arch, cold=True))
        self.warm = Clock(gpu, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cold.close()
        self.warm.close()
        self._results.close()

    def binary(self, kernel: Kernel[P], dtype: DType = F32) -> Binary:
        """Return the kernel compiled for this GPU."""
        return compile_source(generate(kernel, dtype), self.arch.target)

    def resident(self, kernel: Kernel[P], dtype: DType = F32) -> int:
        """Return the most blocks of the kernel that the GPU holds at once."""
        return resident(self.arch, kernel, self.binary(kernel, dtype))

    def seconds(
        self,
        kernel: Kernel[P],
        problem: P,
        read: Allocation | None = None,
        *,
        written: Allocation | None = None,
        dtype: DType = F32,
        cold: bool = False,
    ) -> float:
        """Return the seconds of one launch.

        Without ``written`` the kernel writes its results, which :meth:`results` reads.
        """
        source = Pointer("unused", 0) if read is None else read.pointer("read")
        operands = buffers(source, (written or self._results).pointer("written"))
        binary, launch = self.binary(kernel, dtype), kernel.launch(problem, operands)
        return (self.cold if cold else self.warm).once(lambda stream: self.gpu.launch(binary, launch, stream))

    def results(self, count: int, dtype: Any) -> NDArray[Any]:
        """Return the first ``count`` results of the latest launch."""
        return self._results.download((count,), np.dtype(dtype))


def resident(arch: Arch, kernel: Kernel[Any], binary: Binary) -> int:
    """Return the most blocks of ``THREADS`` threads of a compiled kernel that the GPU holds at once."""
    threads, needs = kernel.config["THREADS"], binary.resources
    occupied = arch.occupancy(threads, needs.registers, needs.shared)
    return arch.sms * max(1, round(occupied * arch.threads_per_sm / threads))


def fitted(seconds: Callable[[int], float]) -> int:
    """Return the trips of a run of :data:`RUN` seconds, from a short trial after one that loads the code."""
    seconds(_TRIAL)
    return max(1, min(2**29, round(_TRIAL * RUN / max(seconds(_TRIAL), 1e-6))))


def sampled(name: str, sample: Callable[[int], float]) -> Spread:
    """Return :data:`ROUNDS` samples of one figure; ``sample`` takes the number of the round."""
    return Spread.of(name, [sample(turn) for turn in range(ROUNDS)])


def per_difference(more: float, less: float) -> Callable[[float, float], float]:
    """Return ``(more - less) / (long - short)`` as a function of the times of two runs.

    It is infinite if the times are equal.
    """
    return lambda long, short: (more - less) / (long - short) if long != short else math.inf
