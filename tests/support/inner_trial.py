"""A product of few outputs and a long k in the emulator: any dtype and layout, poisoned outputs, all launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Protocol

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill import arch
from matmill.arch import Arch
from matmill.compile import compile_ptx
from matmill.dtypes import ALL
from matmill.emulator import Memory, Report, run
from matmill.kernel import GemmOperands, Kernel
from matmill.problem import Gemm
from matmill.source import Source, generate

TARGET = "sm_90a"
H200 = arch.get("h200")
Array = NDArray[np.generic]


class Subject(Protocol):
    """What is tried: a rung, or anything else that has a kernel for a problem."""

    def kernel_for(self, problem: Gemm, arch: Arch) -> Kernel[Gemm]:
        """The kernel with its constants."""


@dataclass(frozen=True)
class Case:
    """A product: sizes, dtype, layouts of F ("row", "column" or "gram": F is E's transpose) and of E, the scalars."""

    m: int
    n: int
    k: int
    dtype: str = "float32"
    layout: str = "column"
    alpha: float = 1.0
    beta: float = 0.0
    e_layout: str = "row"

    def __str__(self) -> str:
        turned = "" if self.e_layout == "row" else "-turned"
        return f"{self.m}x{self.n}x{self.k}-{self.dtype}-{self.layout}{turned}-{self.beta:g}"


def padded(shape: tuple[int, int], dtype: np.dtype[np.generic], rng: np.random.Generator, pad: int) -> Array:
    """A random matrix whose rows lie ``pad`` elements further apart than they are long."""
    values = rng.uniform(-1, 1, (shape[0], shape[1] + pad)).astype(dtype)
    return values[:, : shape[1]]


class Trial:
    """One kernel on fresh random numbers; D starts as NaN, and so does C where beta is 0, and the workspace."""

    def __init__(self, subject: Subject, case: Case, *, pad: int = 0, **constants: int) -> None:
        self.case = case
        self.counter = np.zeros(1, np.uint32)
        dtype = ALL[case.dtype]
        rng = np.random.default_rng([case.m, case.n, case.k])
        if case.e_layout == "row":
            self.e = padded((case.m, case.k), dtype.numpy, rng, pad)
        else:
            self.e = padded((case.k, case.m), dtype.numpy, rng, pad).T
        if case.layout == "gram":
            self.f = self.e.T
        elif case.layout == "row":
            self.f = padded((case.k, case.n), dtype.numpy, rng, pad)
        else:
            self.f = padded((case.n, case.k), dtype.numpy, rng, pad).T
        self.c = np.full((case.m, case.n), np.nan, dtype.numpy)
        if case.beta:
            self.c[:] = rng.uniform(-1, 1, (case.m, case.n))
        self.d = np.full((case.m, case.n), np.nan, dtype.numpy)
        size = dtype.itemsize
        lines = [max(matrix.strides) for matrix in (self.e, self.f)]
        self.problem = Gemm(
            case.m,
            case.n,
            case.k,
            dtype=dtype,
            a_strides=(self.e.strides[0] // size, self.e.strides[1] // size),
            b_strides=None if case.layout == "gram" else (self.f.strides[0] // size, self.f.strides[1] // size),
            a_align=gcd(16, lines[0]),
            b_align=gcd(16, lines[1]),
            a_start_align=16,
            b_start_align=16,
            has_c=case.beta != 0,
            gram=case.layout == "gram",
        )
        kernel = subject.kernel_for(self.problem, H200)
        self.kernel: Kernel[Gemm] = kernel.with_config(kernel.config.replace(**constants))

    def source(self) -> Source:
        """The kernel's own source for this problem."""
        return generate(self.kernel, self.problem.dtype)

    def run(
        self, source: Source | None = None, *, schedule: int = 0, target: str = TARGET, counted: bool = False
    ) -> list[Report]:
        """Runs all launches of the kernel, or of ``source`` in its place; a report for each.

        ``counted`` gives them a counter.
        """
        self.d[:] = np.nan
        assert self.kernel.why_not(self.problem, H200) is None
        memory = Memory()
        workspace = np.full(self.kernel.workspace(self.problem), 0xFF, np.uint8)  # NaN in every float type
        e = memory.bind("E", self.e, access="r")
        operands = GemmOperands(
            a=e,
            b=e if self.problem.gram else memory.bind("F", self.f, access="r"),
            c=memory.bind("C", self.c, access="r"),
            d=memory.bind("D", self.d, access="w"),
            alpha=self.case.alpha,
            beta=self.case.beta,
            workspace=memory.bind("workspace", workspace, access="rw"),
            counter=memory.bind("counter", self.counter, access="rw") if counted else None,
        )
        ptx = compile_ptx(source or self.source(), target)
        launches = self.kernel.launches(self.problem, operands)
        return [run(ptx, launch, memory, races=True, schedule=schedule) for launch in launches]

    def main(self, source: Source | None = None, *, schedule: int = 0) -> Report:
        """The report of the launch that does the work."""
        return self.run(source, schedule=schedule)[len(self.kernel.before)]

    def excess(self) -> float:
        """The largest error over its bound; NaN where D still is.

        At most k + 3 roundings of a sum in the wider type, whatever its order (Higham, Accuracy and Stability of
        Numerical Algorithms, 2nd ed., section 3.1); then one to the output type.
        """
        case, dtype = self.case, self.problem.dtype
        e, f = self.e.astype(np.float64), self.f.astype(np.float64)
        exact = case.alpha * (e @ f)
        bound = (case.k + 3) * dtype.accumulator.roundoff * abs(case.alpha) * (np.abs(e) @ np.abs(f))
        if case.beta:
            added = case.beta * self.c.astype(np.float64)
            exact += added
            bound += 3 * dtype.accumulator.roundoff * np.abs(added)
        if dtype.wider:
            tiny = 2.0**-24 if dtype.name == "float16" else 2.0**-133
            bound += dtype.roundoff * (np.abs(exact) + bound) + tiny
        if dtype.name == "float64":
            bound = 2 * bound  # the answer is itself summed in float64
        return float(np.max(np.abs(self.d.astype(np.float64) - exact) / (bound + 1e-300)))


def hazards(trial: Trial, *, schedule: int = 0) -> list[str]:
    """What the race detector says of all launches."""
    return [str(hazard) for report in trial.run(schedule=schedule) for hazard in report.hazards]


@st.composite
def cases(draw: st.DrawFn, sides: tuple[int, int], lengths: tuple[int, int], dtypes: list[str]) -> Case:
    """Products in any layout, whose m, n and k lie between these limits, of these types."""
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
        e_layout=draw(st.sampled_from(["row", "column"])),
    )


def without(source: Source, header: str, snippet: str, index: int = 0, instead: str = "") -> Source:
    """The source with the ``index``-th ``snippet`` in the file whose name ends in ``header`` replaced."""
    headers = dict(source.headers)
    (name,) = (name for name in headers if name.endswith(header))
    parts = headers[name].split(snippet)
    assert len(parts) > index + 1, f"{snippet!r} is not in {name}"
    headers[name] = snippet.join(parts[: index + 1]) + instead + snippet.join(parts[index + 1 :])
    return replace(source, headers=tuple(sorted(headers.items())))
