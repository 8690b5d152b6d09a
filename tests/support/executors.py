"""What runs a kernel on a product and checks it: the emulator, or a GPU."""

from __future__ import annotations

from typing import Protocol

import pytest

from matmill.kernel import Kernel
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from support.strided_product import StridedProduct


class Executor(Protocol):
    """Runs a kernel on a product; checks every element, what is written beside them, and the bits of a second run."""

    def check(self, product: StridedProduct, kernel: Kernel[Gemm], *, races: bool = True, twice: bool = True) -> None:
        """Fail the test where anything is wrong.

        Without ``races`` nobody looks for them, without ``twice`` nobody looks whether late copies change a bit.
        """


class Emulated:
    """The emulator: late copies and another order of warps change no bit, and nothing is hazardous."""

    def check(self, product: StridedProduct, kernel: Kernel[Gemm], *, races: bool = True, twice: bool = True) -> None:
        """Run with copies that land late, and once more with copies that land at once."""
        found = []
        for late in (True, False)[: 1 + twice]:
            # Races do not depend on when copies land: they are looked for once.
            reports = product.emulated(kernel, late_copies=late, schedule=int(late), races=late and races)
            # Notes tell of boxes beyond the matrices, which remainders and clusters have.
            assert [str(one) for report in reports for one in report.hazards if one.severity != "note"] == []
            assert product.excess() <= 1, kernel.config
            found.append(product.arrays["D"].tobytes())
        assert found[0] == found[-1], kernel.config


class OnGPU:
    """A GPU: right, twice the same bits, and those of the emulator but where an activation is evaluated."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu

    def check(self, product: StridedProduct, kernel: Kernel[Gemm], **_emulated: bool) -> None:
        """Run in the emulator, then twice on the GPU."""
        reason = kernel.why_not(product.problem, self.gpu.arch)
        if reason is not None:
            pytest.skip(reason)
        product.emulated(kernel, races=False)
        emulated = product.arrays["D"].tobytes()
        for _ in range(2):
            product.on_gpu(kernel, self.gpu)
            assert product.excess() <= 1, kernel.config
            assert product.activation or product.arrays["D"].tobytes() == emulated, kernel.config
