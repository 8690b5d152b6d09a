"""One product in the emulator on fresh random numbers, and bugs to plant in its kernel.

Any dtype and layout, poisoned outputs, all launches of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Protocol

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill import arch as arches
from matmill import reference
from matmill.arch import Arch
from matmill.bench.problems.error_bounds import float16_sums
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands, Kernel
from matmill.problem import Gemm

H200 = arches.get("h200")
TARGET = H200.target
BARRIER = "__syncthreads();"
Array = NDArray[np.generic]


class Subject(Protocol):
    """What is tried: a rung, or anything else that has a kernel for a problem."""

    def kernel_for(self, problem: Gemm, arch: Arch) -> Kernel[Gemm]:
        """Return the kernel with its constants."""


@dataclass(frozen=True)
class Case:
    """A product: sizes, dtype, layouts of B ("row", "column" or "gram": B is A's transpose) and of A, the scalars."""

    m: int
    n: int
    k: int
    dtype: str = "float32"
    layout: str = "column"
    alpha: float = 1.0
    beta: float = 0.0
    a_layout: str = "row"

    def __str__(self) -> str:
        transposed = "" if self.a_layout == "row" else "-transposed"
        return f"{self.m}x{self.n}x{self.k}-{self.dtype}-{self.layout}{transposed}-{self.beta:g}"


def pitched(shape: tuple[int, int], dtype: np.dtype[np.generic], rng: np.random.Generator, pad: int) -> Array:
    """Return a random matrix whose rows start ``pad`` elements further apart than they are long."""
    values = rng.uniform(-1, 1, (shape[0], shape[1] + pad)).astype(dtype)
    return values[:, : shape[1]]


def problem_of(case: Case, pad: int = 0) -> Gemm:
    """Return the problem, with the alignment that the rows or columns of its matrices have."""
    dtype, gram = ALL[case.dtype], case.layout == "gram"
    a_pitch = (case.k if case.a_layout == "row" else case.m) + pad
    b_pitch = (case.n if case.layout == "row" else case.k) + pad
    return Gemm(
        case.m,
        case.n,
        case.k,
        dtype=dtype,
        a_strides=(a_pitch, 1) if case.a_layout == "row" else (1, a_pitch),
        b_strides=None if gram else (b_pitch, 1) if case.layout == "row" else (1, b_pitch),
        a_align=gcd(16, a_pitch * dtype.itemsize),
        b_align=gcd(16, (a_pitch if gram else b_pitch) * dtype.itemsize),
        d_align=gcd(16, case.n * dtype.itemsize),
        a_start_align=16,
        b_start_align=16,
        has_c=case.beta != 0,
        gram=gram,
    )


class Trial:
    """One kernel on fresh random numbers; D starts as NaN, and so does C where beta is 0, and the workspace.

    ``subject`` is a kernel, or has one for the problem; ``constants`` replace some of its constants, ``config`` all.
    ``in_place`` makes C and D one matrix.
    """

    def __init__(
        self,
        subject: Subject | Kernel[Gemm],
        case: Case,
        *,
        arch: Arch = H200,
        config: Config | None = None,
        in_place: bool = False,
        pad: int = 0,
        **constants: int,
    ) -> None:
        self.case, self.arch = case, arch
        self.counter = np.zeros(1, np.uint32)
        dtype = ALL[case.dtype]
        rng = np.random.default_rng([case.m, case.n, case.k])
        if case.a_layout == "row":
            self.a = pitched((case.m, case.k), dtype.numpy, rng, pad)
        else:
            self.a = pitched((case.k, case.m), dtype.numpy, rng, pad).T
        if case.layout == "gram":
            self.b = self.a.T
        elif case.layout == "row":
            self.b = pitched((case.k, case.n), dtype.numpy, rng, pad)
        else:
            self.b = pitched((case.n, case.k), dtype.numpy, rng, pad).T
        self.c = np.full((case.m, case.n), np.nan, dtype.numpy)
        if case.beta:
            self.c[:] = rng.uniform(-1, 1, (case.m, case.n))
        self.d = self.c if in_place else np.full((case.m, case.n), np.nan, dtype.numpy)
        self._before = self.c.copy()
        self.problem = problem_of(case, pad)
        kernel = subject if isinstance(subject, Kernel) else subject.kernel_for(self.problem, arch)
        config = kernel.config if config is None else config
        self.kernel: Kernel[Gemm] = kernel.with_config(config.replace(**constants))

    def source(self, entry: str = "") -> Source:
        """Give kernel's own source for this problem, or that of the launch around it whose entry point is ``entry``."""
        around = (*self.kernel.before, *self.kernel.after)
        program = next((launch for launch in around if launch.entry == entry), self.kernel)
        return generate(program, self.problem.dtype)

    def run(
        self,
        source: Source | None = None,
        *,
        schedule: int = 0,
        late_copies: bool = False,
        races: bool = True,
        target: str = "",
        counted: bool = False,
        own_waits: bool = False,
    ) -> list[Report]:
        """Run all launches of the kernel; a report for each. ``source`` replaces that of its entry point.

        ``schedule`` stands for an order of warps; ``counted`` gives the launches a counter.
        """
        if self.d is self.c:
            self.d[:] = self._before
        else:
            self._before, self.d[:] = self.c.copy(), np.nan
        assert self.kernel.why_not(self.problem, self.arch) is None
        memory = Memory()
        workspace = np.full(self.kernel.workspace(self.problem), 0xFF, np.uint8)  # NaN in every float type
        a = memory.bind("A", self.a, access="r")
        d = memory.bind("D", self.d, access="rw" if self.d is self.c else "w")
        operands = GemmOperands(
            a=a,
            b=a if self.problem.gram else memory.bind("B", self.b, access="r"),
            c=d if self.d is self.c else memory.bind("C", self.c, access="r"),
            d=d,
            alpha=self.case.alpha,
            beta=self.case.beta,
            workspace=memory.bind("workspace", workspace, access="rw"),
            counter=memory.bind("counter", self.counter, access="rw") if counted else None,
        )
        reports = []
        for program, launch in self.kernel.steps(self.problem, operands):
            own = source if source and source.entry == program.entry else generate(program, self.problem.dtype)
            ptx = compile_ptx(own, target or self.arch.target)
            reports.append(
                run(
                    ptx,
                    launch,
                    memory,
                    races=races,
                    schedule=schedule,
                    late_copies=late_copies,
                    own_waits=own_waits,
                )
            )
        return reports

    def main(
        self,
        source: Source | None = None,
        *,
        schedule: int = 0,
        late_copies: bool = False,
        races: bool = True,
        own_waits: bool = False,
    ) -> Report:
        """Return the report of the launch that does the work."""
        reports = self.run(source, schedule=schedule, late_copies=late_copies, races=races, own_waits=own_waits)
        return reports[len(self.kernel.before)]

    def excess(self) -> float:
        """Return the largest error over its bound; infinite where a value is missing.

        The bound is the library's own; with float16 sums that of all their roundings besides.
        """
        case = self.case
        scalars = {"alpha": case.alpha, "beta": case.beta}
        limit = reference.bound(self.a, self.b, self._before, **scalars)
        if dict(self.kernel.config.constants).get("ACC16"):
            size = np.abs(self.a).astype(np.float64) @ np.abs(self.b).astype(np.float64)
            limit = limit + abs(case.alpha) * float16_sums(size, case.k)
        return reference.excess(self.d, reference.answer(self.a, self.b, self._before, **scalars), limit)


def in_place(kernel: Kernel[Gemm], shape: tuple[int, int, int], *, alpha: float = 1.0, beta: float = 0.0) -> Trial:
    """Return a product of packed float32 matrices that is written over C."""
    return Trial(kernel, Case(*shape, layout="row", alpha=alpha, beta=beta), in_place=True)


def hazards(trial: Trial, *, schedule: int = 0) -> list[str]:
    """Return what the race detector says of all launches."""
    return [str(hazard) for report in trial.run(schedule=schedule) for hazard in report.hazards]


@st.composite
def cases(draw: st.DrawFn, sides: tuple[int, int], lengths: tuple[int, int], dtypes: list[str]) -> Case:
    """Return products in any layout, whose m, n and k are between these limits, of these types."""
    layout = draw(st.sampled_from(["row", "column", "gram"]))
    m = draw(st.integers(*sides))
    return Case(
        m,
        m if layout == "gram" else draw(st.integers(*sides)),
        draw(st.integers(*lengths)),
        draw(st.sampled_from(dtypes)),
        layout,
        alpha=draw(st.sampled_from([1.0, -0.5])),
        beta=draw(st.sampled_from([0.0, 2.0])),
        a_layout=draw(st.sampled_from(["row", "column"])),
    )


def without(source: Source, header: str, snippet: str, index: int = 0, instead: str = "") -> Source:
    """Return the source with the ``index``-th ``snippet`` replaced in the file whose name ends in ``header``.

    An empty ``header`` means the one file that has the snippet. Line numbers stay unless ``instead`` changes them.
    """
    headers = dict(source.headers)
    (name,) = (name for name, text in headers.items() if name.endswith(header) and (header or snippet in text))
    parts = headers[name].split(snippet)
    assert len(parts) > index + 1, f"{snippet!r} is not in {name}"
    headers[name] = snippet.join(parts[: index + 1]) + instead + snippet.join(parts[index + 1 :])
    return replace(source, headers=tuple(sorted(headers.items())))
