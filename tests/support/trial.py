"""One kernel on one product: what tests of rungs and of production kernels that look at reports share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import PRODUCTS
from matmill.emulator import Report
from matmill.jit.source import Source, generate
from matmill.kernel import Kernel
from matmill.problem import Gemm
from support.integers import IntegerProduct
from support.strided import H200, ROW, Layout
from support.strided_product import StridedProduct


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

    def product(self, pad: int = 0, *, in_place: bool = False) -> StridedProduct:
        """Return the product on fresh numbers, with ``pad`` elements between neighbouring rows of A and of B."""
        a, b = (Layout(transposed=layout == "column", pad=pad) for layout in (self.a_layout, self.layout))
        given: dict[str, Any] = {"gram": self.layout == "gram", "in_place": in_place, "c": ROW if self.beta else None}
        shape = (self.m, self.n, self.k)
        dtype = PRODUCTS[self.dtype]
        kind = IntegerProduct if dtype.is_integer else StridedProduct
        return kind(shape, a, b, dtype=dtype, alpha=self.alpha, beta=self.beta, **given)


def problem_of(case: Case) -> Gemm:
    """Return the problem of packed matrices."""
    return case.product().problem


class Trial:
    """A kernel on fresh random numbers, and its matrices.

    ``subject`` is a kernel, or has one for the problem; ``constants`` replace some of its constants, ``config`` all.
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
        self.product = case.product(pad, in_place=in_place)
        self.problem = self.product.problem
        kernel = subject if isinstance(subject, Kernel) else subject.kernel_for(self.problem, arch)
        config = kernel.config if config is None else config
        self.kernel: Kernel[Gemm] = kernel.with_config(config.replace(**constants))
        arrays = self.product.arrays
        #: C is D where a product has none.
        self.a, self.b, self.c, self.d = (arrays.get(name, arrays["D"])[0] for name in "ABCD")

    def source(self, entry: str = "") -> Source:
        """Return the kernel's source for this problem, or that of the launch whose entry point is ``entry``."""
        around = (*self.kernel.before, *self.kernel.after)
        program = next((launch for launch in around if launch.entry == entry), self.kernel)
        return generate(program, self.problem.dtype)

    def run(self, source: Source | None = None, *, counted: bool = False, **options: Any) -> list[Report]:
        """Run all launches of the kernel as :meth:`.Strided.emulated` does; ``counted`` gives them a counter."""
        counter = self.counter if counted else None
        return self.product.emulated(self.kernel, arch=self.arch, source=source, counter=counter, **options)

    def main(self, source: Source | None = None, **options: Any) -> Report:
        """Return the report of the launch that does the work."""
        return self.run(source, **options)[len(self.kernel.before)]

    def excess(self) -> float:
        """Return the largest error over its bound; infinite where a value is missing."""
        return self.product.excess(self.kernel)


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
