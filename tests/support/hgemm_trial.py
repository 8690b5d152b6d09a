"""One product of 16-bit matrices in the emulator on fresh random numbers, and how far it may lie from the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill import reference
from matmill.arch import ARCHES, Arch
from matmill.bench.sums import float16_sums
from matmill.compile import compile_ptx
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.emulator import Memory, Report, run
from matmill.kernel import GemmOperands, Kernel, Rung
from matmill.problem import Gemm
from matmill.source import Source, generate

Array = NDArray[np.generic]
H200 = ARCHES["h200"]


@dataclass(frozen=True)
class Case:
    """A product of packed matrices: sizes, element type and scalars."""

    m: int
    n: int
    k: int
    dtype: str = "float16"
    alpha: float = 1.25
    beta: float = 0.0

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}-{self.dtype}-{self.beta:g}"


def aligned(columns: int) -> int:
    """Bytes to which rows of so many 16-bit elements are aligned in a packed matrix, at most 16."""
    return min(16, (columns * 2) & -(columns * 2)) if columns else 16


def problem_of(case: Case) -> Gemm:
    """The problem, with the alignment that its rows have."""
    return Gemm(
        case.m,
        case.n,
        case.k,
        dtype=ALL[case.dtype],
        has_c=case.beta != 0,
        a_align=aligned(case.k),
        b_align=aligned(case.n),
        d_align=aligned(case.n),
    )


class Trial:
    """One product on fresh random numbers: D starts as NaN, and so does C where beta is 0."""

    def __init__(
        self, rung: Rung[Gemm], case: Case, *, arch: Arch = H200, config: Config | None = None, in_place: bool = False
    ) -> None:
        self.case, self.arch = case, arch
        self.problem = problem_of(case)
        kernel = rung.kernel_for(self.problem, arch)
        self.kernel: Kernel[Gemm] = kernel if config is None else kernel.with_config(config)
        rng = np.random.default_rng([case.m, case.n, case.k])
        element = self.problem.dtype.numpy
        self.a = rng.uniform(-1, 1, (case.m, case.k)).astype(element)
        self.b = rng.uniform(-1, 1, (case.k, case.n)).astype(element)
        self.c = np.full((case.m, case.n), np.nan, element)
        if case.beta:
            self.c[:] = rng.uniform(-1, 1, (case.m, case.n)).astype(element)
        self.before = self.c.copy()
        self.d = self.c if in_place else np.full((case.m, case.n), np.nan, element)

    def run(
        self, source: Source | None = None, *, races: bool = True, schedule: int = 0, late_copies: bool = False
    ) -> Report:
        """Runs the kernel, or ``source`` in its place, with warps in the order that ``schedule`` stands for."""
        assert self.kernel.why_not(self.problem, self.arch) is None
        memory = Memory()
        d = memory.bind("D", self.d, access="rw" if self.d is self.c else "w")
        operands = GemmOperands(
            a=memory.bind("A", self.a, access="r"),
            b=memory.bind("B", self.b, access="r"),
            c=d if self.d is self.c else memory.bind("C", self.c, access="r"),
            d=d,
            alpha=self.case.alpha,
            beta=self.case.beta,
        )
        ptx = compile_ptx(source or generate(self.kernel, self.problem.dtype), self.arch.target)
        launch = self.kernel.launch(self.problem, operands)
        return run(ptx, launch, memory, races=races, schedule=schedule, late_copies=late_copies)

    def excess(self) -> float:
        """The largest error over its bound; infinite where a value is missing.

        With float32 sums the bound is the library's own, with float16 sums that of all their roundings besides.
        """
        case = self.case
        scalars = {"alpha": case.alpha, "beta": case.beta}
        limit = reference.bound(self.a, self.b, self.before, **scalars)
        if self.kernel.config["ACC16"]:
            size = np.abs(self.a).astype(np.float64) @ np.abs(self.b).astype(np.float64)
            limit = limit + abs(case.alpha) * float16_sums(size, case.k)
        return reference.excess(self.d, reference.answer(self.a, self.b, self.before, **scalars), limit)
