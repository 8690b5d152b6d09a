"""Every configuration of a production product on a GPU: checked against float64, then timed beside cuBLAS."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.enqueue import enqueuer
from lab.gemm.tiles import LIBRARY
from matmill.bench.libraries.blas import torch_product
from matmill.bench.problems.random_numbers import uniform
from matmill.bench.timing.clock import Clock, Competitor
from matmill.dtypes import DType
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.problem import Gemm
from matmill.reference import answer, bound, excess
from matmill.runtime.gpu import GPU
from matmill.runtime.memory import Allocation

Array = NDArray[Any]

#: Bytes of workspace at the most.
MOST_SCRATCH = 2**30
_NAN_BYTE = 0xFF
#: Rows of a result that are checked.
_CHECKED = 16


@dataclass(frozen=True)
class Memory:
    """The numbers that every problem of a type is made of, on the host and on the GPU, with room for results."""

    a: Array
    b: Array
    on_gpu: tuple[Allocation, Allocation]
    d: Allocation
    scratch: Allocation

    @classmethod
    def of(cls, gpu: GPU, dtype: DType, elements: int, seed: int) -> Memory:
        """Return random matrices of at most so many elements."""
        a, b = (uniform((seed, index), 0, (1, elements), dtype).reshape(-1) for index in range(2))
        return cls(a, b, (gpu.upload(a, "A"), gpu.upload(b, "B")), gpu.empty(a.nbytes), gpu.empty(MOST_SCRATCH))

    def matrices(self, problem: Gemm) -> tuple[Array, Array]:
        """Return A and B on the host: rows or columns are contiguous, as the problem's strides say."""
        shapes = (self.a, problem.a_row_col, problem.m, problem.k), (self.b, problem.b_row_col, problem.k, problem.n)
        a, b = (
            numbers[: rows * columns].reshape(rows, columns)
            if strides[1] == 1
            else numbers[: rows * columns].reshape(columns, rows).T
            for numbers, strides, rows, columns in shapes
        )
        return a, b

    def operands(self) -> GemmOperands:
        """Return all that kernels are given."""
        a, b = self.on_gpu
        return GemmOperands(
            a.pointer("A"), b.pointer("B"), self.d.pointer("D"), self.d.pointer("D"),
            workspace=self.scratch.pointer("workspace"),
        )  # fmt: skip


class _Check:
    """Rows of one problem's result against float64."""

    def __init__(self, problem: Gemm, memory: Memory, seed: int) -> None:
        a, b = memory.matrices(problem)
        rows = np.random.default_rng(seed).integers(0, problem.m, _CHECKED)
        self._rows = np.unique([0, problem.m - 1, *rows])
        self._expected, self._limit = answer(a[self._rows], b), bound(a[self._rows], b)

    def ratio(self, found: Array) -> float:
        """Return the largest error over the allowed one."""
        return excess(found[self._rows], self._expected, self._limit)


def measure(
    gpu: GPU, clock: Clock, problem: Gemm, memory: Memory, kernels: Sequence[Kernel[Gemm]], *, seed: int
) -> dict[str, float]:
    """Return seconds by configuration and, where torch is installed, of :data:`LIBRARY`: interleaved, with a cold L2.

    Each configuration has been checked before; where a result is wrong, the program ends with 1.
    """
    check = _Check(problem, memory, seed)
    competitors = []
    for kernel in kernels:
        run = enqueuer(gpu, binaries(kernel, problem, memory.operands(), gpu.arch.target))
        memory.d.fill_bytes(_NAN_BYTE)
        gpu.synchronize()
        run(clock.stream)
        gpu.synchronize()
        ratio = check.ratio(memory.d.download((problem.m, problem.n), problem.dtype.numpy))
        if not ratio <= 1:
            sys.exit(f"{problem}, {kernel.entry} ({kernel.config}): error over the allowed one {ratio:.3g}")
        competitors.append(Competitor(str(kernel.config), run))
    if find_spec("torch") is not None:
        competitors.append(Competitor(LIBRARY, torch_product(LIBRARY, *memory.matrices(problem)).run))
    timings = clock.compare(competitors, seconds_each=0.02, most_rounds=12, settle=0.05)
    return {one.name: timing.median for one, timing in zip(competitors, timings, strict=True)}
