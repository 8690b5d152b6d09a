"""Executors run a kernel on a problem and check the result: the emulator, and a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from matmill.kernel import Kernel
from matmill.runtime.gpu import GPU
from support.strided import P, Strided


class Executor(Protocol):
    """Runs a kernel on a problem; checks every element, what is written beside them, and the bits of a second run."""

    def check(self, problem: Strided[P], kernel: Kernel[P], *, races: bool = True, twice: bool = True) -> None:
        """Fail the test where anything is wrong.

        Without ``races`` nobody looks for them, without ``twice`` nobody looks whether late copies change a bit.
        """


class Emulated:
    """The emulator: late copies and another order of warps change no bit, and nothing is hazardous."""

    def check(self, problem: Strided[P], kernel: Kernel[P], *, races: bool = True, twice: bool = True) -> None:
        """Run with copies that land late, and once more with copies that land at once."""
        results = []
        for late in (True, False)[: 1 + twice]:
            # Races do not depend on when copies land: they are looked for once.
            reports = problem.emulated(kernel, late_copies=late, schedule=int(late), races=late and races)
            # Notes tell of boxes beyond the matrices, which remainders and clusters have.
            assert [str(one) for report in reports for one in report.hazards if one.severity != "note"] == []
            assert problem.excess(kernel) <= 1, kernel.config
            results.append(problem.arrays["D"].tobytes())
        assert results[0] == results[-1], kernel.config


class OnGPU:
    """A GPU: right, twice the same bits, and those of the emulator but where an activation is evaluated."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu

    def check(self, problem: Strided[P], kernel: Kernel[P], **_emulated: bool) -> None:
        """Run in the emulator, then twice on the GPU."""
        reason = kernel.why_not(problem.problem, self.gpu.arch)
        if reason is not None:
            pytest.skip(reason)
        problem.emulated(kernel, races=False)
        emulated = problem.arrays["D"].tobytes()
        evaluated: Any = getattr(problem, "activation", None)
        for _ in range(2):
            problem.on_gpu(kernel, self.gpu)
            assert problem.excess(kernel) <= 1, kernel.config
            assert evaluated or problem.arrays["D"].tobytes() == emulated, kernel.config
