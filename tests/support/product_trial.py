"""One product in the emulator on fresh random numbers, and bugs to plant in its kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from matmill.compile import compile_ptx
from matmill.emulator import Memory, Report, run
from matmill.kernel import GemmOperands, Kernel
from matmill.problem import Gemm
from matmill.source import Source, generate

TARGET = "sm_90a"
BARRIER = "__syncthreads();"


class Trial:
    """One product on fresh random numbers: C starts as NaN where beta is 0 and as numbers otherwise."""

    def __init__(self, kernel: Kernel[Gemm], shape: tuple[int, int, int], *, alpha: float, beta: float) -> None:
        m, n, k = shape
        rng = np.random.default_rng([m, n, k])
        self.kernel = kernel
        self.problem = Gemm(m, n, k, has_c=beta != 0)
        self.alpha, self.beta = alpha, beta
        self.a = rng.uniform(-1, 1, (m, k)).astype(np.float32)
        self.b = rng.uniform(-1, 1, (k, n)).astype(np.float32)
        self.before = (
            rng.uniform(-1, 1, (m, n)).astype(np.float32) if beta else np.full((m, n), np.nan, dtype=np.float32)
        )
        self.c = self.before.copy()

    def run(self, source: Source | None = None, *, schedule: int = 0, late_copies: bool = False) -> Report:
        """Runs the kernel, or ``source`` in its place, with warps in the order that ``schedule`` stands for."""
        memory = Memory()
        c = memory.bind("C", self.c, access="rw")
        operands = GemmOperands(
            a=memory.bind("A", self.a, access="r"),
            b=memory.bind("B", self.b, access="r"),
            c=c,
            d=c,
            alpha=self.alpha,
            beta=self.beta,
        )
        ptx = compile_ptx(source or generate(self.kernel, self.problem.dtype), TARGET)
        launch = self.kernel.launch(self.problem, operands)
        return run(ptx, launch, memory, races=True, schedule=schedule, late_copies=late_copies)

    def excess(self) -> NDArray[np.float64]:
        """Each element's error over its bound; right where at most 1, and NaN where C is.

        k fused steps, then alpha and the last addition round once each (Higham, Accuracy and Stability of Numerical
        Algorithms, 2nd ed., section 3.1), whatever the order of the terms; beta * C rounds twice.
        """
        unit = 2.0**-24
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        exact = self.alpha * (a @ b)
        bound = (self.problem.k + 3) * unit * abs(self.alpha) * (np.abs(a) @ np.abs(b))
        if self.beta:
            exact += self.beta * self.before
            bound += 4 * unit * np.abs(self.beta * self.before)
        return np.asarray(np.abs(self.c - exact) / (bound + 1e-300))


def without(source: Source, snippet: str, index: int = 0, instead: str = "") -> Source:
    """The source with the ``index``-th ``snippet`` of the header that has it replaced; line numbers stay."""
    headers = dict(source.headers)
    (name,) = (name for name, text in headers.items() if snippet in text)
    parts = headers[name].split(snippet)
    headers[name] = snippet.join(parts[: index + 1]) + instead + snippet.join(parts[index + 1 :])
    return replace(source, headers=tuple(sorted(headers.items())))
