"""The rungs of the transpose_add ladder and the production kernels, to be launched once each and checked to the bit.

Every element type; sizes that no tile divides, whose rows start on 16, 8, 4, 2 or single bytes; of the production
kernels what is chosen for operands that are contiguous along the result's rows and across them, for pitches and starts
of their own, batches, short sides, factors, and moves without y.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.launches import NAN_BYTE, Launches
from matmill.arch import Arch
from matmill.arrays import inspect
from matmill.choose import choose_transpose_add
from matmill.dtypes import ELEMENTWISE, DType
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel
from matmill.ladders.runner.selection import nearest
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.ladders.transpose_add.subject import MOVING, transpose_add_problem
from matmill.launch import Pointer
from matmill.lowering import Offsets, lower_transpose
from matmill.problem import Geam
from matmill.runtime.gpu import GPU

Array = NDArray[Any]

#: x's rows and columns for the rungs, and the result's batch, rows and columns for the production kernels, of which
#: one is for many small packed matrices.
_RUNG_SIZES = ((96, 144), (67, 80), (133, 65), (130, 48))
_SHAPES = ((1, 67, 133), (3, 40, 33), (1, 130, 250), (2, 5, 300), (1, 1, 3), (5, 129, 8))
_SMALL = ((700, 12, 9), (65, 32, 33), (1001, 3, 5))
#: Few rows or columns, with the elements between the long rows or columns of operands that have such.
_SLIM = ((3, 20480, 0), (17, 5000, 0), (17, 5001, 3), (40, 3000, 1))
_FACTORS = ((1.0, 1.0), (2.0, -3.0))


@dataclass(frozen=True)
class Layout:
    """A batch of matrices in memory: elements before the first and between rows; ``crossed`` ones are column-major."""

    crossed: bool = False
    before: int = 0
    pad: int = 0

    def length(self, shape: tuple[int, int, int]) -> int:
        """Count the elements of the memory that holds it."""
        batch, rows, columns = shape
        return self.before + batch * (columns * (rows + self.pad) if self.crossed else rows * (columns + self.pad))

    def view(self, memory: Array, shape: tuple[int, int, int]) -> Array:
        """Return the matrices in that memory."""
        batch, rows, columns = shape
        if self.crossed:
            return memory[self.before :].reshape(batch, columns, rows + self.pad)[..., :rows].swapaxes(1, 2)
        return memory[self.before :].reshape(batch, rows, columns + self.pad)[..., :columns]


@dataclass(frozen=True)
class Case:
    """D's shape, the layouts of x transposed, y (or none) and D, factors, and the kernel where it is not chosen."""

    name: str
    shape: tuple[int, int, int]
    dtype: DType
    x: Layout
    y: Layout | None
    d: Layout
    factors: tuple[float, float] = (1.0, 1.0)
    rung: tuple[Kernel[Geam], Geam] | None = None

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """Those of x, y and D; without y, memory for a packed one that is not read."""
        return self.x, self.y or Layout(), self.d

    def chosen(self, arch: Arch, addresses: tuple[int, int, int]) -> list[tuple[Kernel[Geam], Geam, Offsets]]:
        """Return kernels, problems and the bytes from the operands' starts, for memory at ``addresses``."""
        if self.rung is not None:
            return [(*self.rung, (0, 0, 0, 0))]
        operands = []
        for name, layout, address in zip("XYD", self.layouts, addresses, strict=True):
            view = layout.view(np.empty(layout.length(self.shape), self.dtype.numpy), self.shape)
            result = inspect(view.swapaxes(1, 2) if name == "X" else view, name)
            start = address + layout.before * self.dtype.itemsize
            operands.append(result._replace(device=("cuda", 0), address=start))
        x, y, d = operands
        stages = lower_transpose(x, None if self.y is None else y, d, alpha=self.factors[0] if self.y is None else None)
        return [
            (choose_transpose_add(stage.problem, arch).kernel, stage.problem, offset)
            for stage in stages
            for offset in stage.offsets
        ]

    def kernels(self, arch: Arch) -> list[tuple[Kernel[Any], DType]]:
        """Return what is chosen depends on addresses through alignment alone, and every allocation is aligned."""
        return [(kernel, problem.dtype) for kernel, problem, _ in self.chosen(arch, (0, 0, 0))]

    def launch(self, gpu: GPU, seed: int) -> tuple[str, bool]:
        """Run on random numbers whose sums are exact; its line says how many elements differ."""
        rng = np.random.default_rng([seed, *self.shape])
        kind, size = self.dtype.numpy, self.dtype.itemsize
        x, y, d = (rng.integers(-60, 60, layout.length(self.shape)).astype(kind) for layout in self.layouts)
        entries: dict[str, None] = {}
        with gpu.upload(x, "X") as to_x, gpu.upload(y, "Y") as to_y, gpu.empty(d.nbytes) as to_d:
            to_d.fill_bytes(NAN_BYTE)
            pointers = [buffer.pointer(name) for buffer, name in zip((to_x, to_y, to_d), "XYD", strict=True)]
            first, second, third = (pointer.address for pointer in pointers)
            for kernel, problem, (x_to, y_to, _, d_to) in self.chosen(gpu.arch, (first, second, third)):
                starts = zip(pointers, self.layouts, (x_to, y_to, d_to), strict=True)
                at = [Pointer(one.name, one.address + size * layout.before + to) for one, layout, to in starts]
                operands = GemmOperands(at[0], at[1], at[2], at[2], *self.factors)
                for binary, launched in binaries(kernel, problem, operands, gpu.arch.target):
                    gpu.launch(binary, launched)
                entries[kernel.entry] = None
            gpu.synchronize()
            result = self.d.view(to_d.download(d.shape, kind), self.shape)
        wrong = int(np.count_nonzero(_bits(result) != _bits(self._expected(x, y))))
        ways = "".join("-" if layout is None else "cr"[not layout.crossed] for layout in (self.x, self.y))
        sizes = "x".join(map(str, self.shape))
        line = f"{self.name:10} {', '.join(entries):15} {sizes:12} {self.dtype.name:8} {ways} {self.factors}"
        return f"{line}{f'  {wrong} elements differ' if wrong else ''}", not wrong

    def _expected(self, x: Array, y: Array) -> Array:
        exact = np.int64 if self.dtype.numpy.kind == "i" else np.float64
        alpha, beta = map(exact, self.factors)
        total = self.x.view(x, self.shape).astype(exact) * alpha
        if self.y is not None:
            total = total + self.y.view(y, self.shape).astype(exact) * beta
        return total.astype(self.dtype.numpy)


def _bits(matrices: Array) -> Array:
    return np.ascontiguousarray(matrices).view(f"i{matrices.itemsize}")


def rungs(arch: Arch) -> Iterator[Case]:
    """Yield every rung at sizes of every alignment, or the nearest that it takes."""
    for (m, n), dtype, rung in product(_RUNG_SIZES, ELEMENTWISE.values(), TRANSPOSE_ADD):
        size, reason = nearest(rung, transpose_add_problem(m, n, dtype), arch, MOVING)
        if size is None:
            sys.exit(f"{rung.label}: {reason}")
        kernel = rung.kernel_for(size, arch)
        yield Case(
            rung.label, (1, size.m, size.n), dtype, Layout(crossed=True), Layout(), Layout(), rung=(kernel, size)
        )


def production() -> Iterator[Case]:
    """Yield operands in every layout, with alternating shapes, factors and starts; many small matrices; slim ones."""
    shapes, factors, starts = cycle(_SHAPES), cycle(_FACTORS), cycle((0, 1, 3, 8))
    crossed = (True, False)
    for dtype, x, y, pad in product(ELEMENTWISE.values(), crossed, (False, True, None), (0, 1, 2, 4)):
        shape, start = next(shapes), next(starts)
        d = Layout(before=start, pad=next(starts) if pad else 0)
        of_y = None if y is None else Layout(crossed=y, before=start, pad=pad)
        used = next(factors) if y is not None or pad else (1.0, 1.0)
        yield Case("production", shape, dtype, Layout(crossed=x, before=next(starts), pad=pad), of_y, d, used)
    for shape, dtype, of_y in product(_SMALL, ELEMENTWISE.values(), (Layout(), None)):
        used = next(factors) if of_y else (1.0, 1.0)
        yield Case("production", shape, dtype, Layout(crossed=True), of_y, Layout(), used)
    added, pairs = cycle((True, True, False)), cycle(((0, 0), (3, 8), (0, 0), (8, 1), (1, 0)))
    for (short, long, pad), dtype, wide in product(_SLIM, ELEMENTWISE.values(), (False, True)):
        shape, (before_x, before_d) = (1, short, long) if wide else (1, long, short), next(pairs)
        of_x = Layout(crossed=True, before=before_x, pad=0 if wide else pad)
        d = Layout(before=before_d, pad=pad if wide else 0)
        of_y = d if next(added) else None
        used = next(factors) if of_y else (1.0, 1.0)
        yield Case("production", shape, dtype, of_x, of_y, d, used)


LAUNCHES: Launches[Case] = Launches("cases", lambda arch, _args: ([], [*rungs(arch), *production()]))
