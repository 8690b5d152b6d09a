"""Launches the rungs of the transpose_add ladder and the production kernels and checks each: something for sanitizers.

    python benchmarks/transpose_add_launches.py
    compute-sanitizer --tool racecheck python benchmarks/transpose_add_launches.py

Every element type; sizes that no tile divides, whose rows start on 16, 8, 4, 2 or single bytes; of the production
kernels what is chosen for operands that lie along the result's rows and across them, for pitches and starts of their
own, batches, short sides, factors, and moves without y. Prints a line per kernel; exits with 1 where a result is wrong.
Kernels are compiled by other processes first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.arch import Arch
from matmill.arrays import Operand
from matmill.bench.compiler import KernelCompiler
from matmill.bench.selection import nearest
from matmill.bench.subject import MOVING
from matmill.bench.transposed import transposed_sum
from matmill.choose import choose_transpose_add
from matmill.dtypes import ELEMENTWISE, DType
from matmill.kernel import GemmOperands, Kernel
from matmill.ladder.transpose_add import TRANSPOSE_ADD
from matmill.launch import Pointer
from matmill.layout import Offsets, lower_sum
from matmill.problem import Geam
from matmill.runtime.gpu import GPU

Array = NDArray[Any]

_DEVICE_BYTE = 0xFF
#: x's rows and columns for the rungs, and the result's batch, rows and columns for the production kernels, of which
#: one is for many small packed matrices.
_RUNG_SIZES = ((96, 144), (67, 80), (133, 65), (130, 48))
_SHAPES = ((1, 67, 133), (3, 40, 33), (1, 130, 250), (2, 5, 300), (1, 1, 3), (5, 129, 8))
_SMALL = ((700, 12, 9), (65, 32, 33), (1001, 3, 5))
#: Few rows or columns, with the elements between the lines of those operands that consist of long ones.
_SLIM = ((3, 20480, 0), (17, 5000, 0), (17, 5001, 3), (40, 3000, 1))
_FACTORS = ((1.0, 1.0), (2.0, -3.0))


@dataclass(frozen=True)
class Laid:
    """A matrix of a batch: how far it is into its memory, and between its rows, in elements; ``crossed`` transposed."""

    crossed: bool = False
    before: int = 0
    pad: int = 0

    def strides(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Of batch, rows and columns, in elements."""
        _, rows, columns = shape
        lines, pitch = (columns, rows + self.pad) if self.crossed else (rows, columns + self.pad)
        along = (1, pitch) if self.crossed else (pitch, 1)
        return (lines * pitch, *along)

    def room(self, shape: tuple[int, int, int]) -> int:
        """Elements of the memory that holds it."""
        return self.before + shape[0] * self.strides(shape)[0]

    def view(self, memory: Array, shape: tuple[int, int, int]) -> Array:
        """The matrices in that memory."""
        steps = tuple(memory.itemsize * stride for stride in self.strides(shape))
        found: Array = np.lib.stride_tricks.as_strided(memory[self.before :], shape, steps)
        return found


@dataclass(frozen=True)
class Case:
    """One sum: D's shape, how x transposed, y (or none) and D lie, factors, and the kernel where it is not chosen."""

    name: str
    shape: tuple[int, int, int]
    dtype: DType
    x: Laid
    y: Laid | None
    d: Laid
    factors: tuple[float, float] = (1.0, 1.0)
    rung: tuple[Kernel[Geam], Geam] | None = None

    def launched(self, arch: Arch, addresses: tuple[int, int, int]) -> list[tuple[Kernel[Geam], Geam, Offsets]]:
        """Kernels, problems and the bytes from the operands' starts, for operands that start at ``addresses``."""
        if self.rung is not None:
            return [(*self.rung, (0, 0, 0, 0))]
        x, y, d = (
            None if laid is None else self._operand(laid, address, turned=place == 0)
            for place, (laid, address) in enumerate(zip((self.x, self.y, self.d), addresses, strict=True))
        )
        if x is None or d is None:
            raise ValueError(self)
        alpha = self.factors[0] if y is None else None
        stages = lower_sum(x, y, d, alpha=alpha)
        return [
            (choose_transpose_add(stage.problem, arch).kernel, stage.problem, offset)
            for stage in stages
            for offset in stage.offsets
        ]

    def _operand(self, laid: Laid, address: int, *, turned: bool) -> Operand:
        batch, rows, columns = self.shape
        whole, row, column = laid.strides(self.shape)
        shape, strides = ((batch, rows, columns), (whole, row, column))
        if turned:
            shape, strides = (batch, columns, rows), (whole, column, row)
        return Operand(shape, strides, self.dtype, ("cuda", 0), address, readonly=False, library="launches", owner=None)


def rungs(arch: Arch) -> Iterator[Case]:
    """Every rung at sizes of every alignment, or the nearest that it takes."""
    for (m, n), dtype, rung in product(_RUNG_SIZES, ELEMENTWISE.values(), TRANSPOSE_ADD):
        size, reason = nearest(rung, transposed_sum(m, n, dtype), arch, MOVING)
        if size is None:
            sys.exit(f"{rung.label}: {reason}")
        kernel = rung.kernel_for(size, arch)
        yield Case(rung.label, (1, size.m, size.n), dtype, Laid(crossed=True), Laid(), Laid(), rung=(kernel, size))


def production() -> Iterator[Case]:
    """Sums whose operands lie in every way, with shapes, factors and starts in turns; many small ones; slim ones."""
    shapes, factors, starts = cycle(_SHAPES), cycle(_FACTORS), cycle((0, 1, 3, 8))
    crossed = (True, False)
    for dtype, x, y, pad in product(ELEMENTWISE.values(), crossed, (False, True, None), (0, 1, 2, 4)):
        shape, start = next(shapes), next(starts)
        d = Laid(before=start, pad=next(starts) if pad else 0)
        laid_y = None if y is None else Laid(crossed=y, before=start, pad=pad)
        used = next(factors) if y is not None or pad else (1.0, 1.0)
        yield Case("production", shape, dtype, Laid(crossed=x, before=next(starts), pad=pad), laid_y, d, used)
    for shape, dtype, laid_y in product(_SMALL, ELEMENTWISE.values(), (Laid(), None)):
        used = next(factors) if laid_y else (1.0, 1.0)
        yield Case("production", shape, dtype, Laid(crossed=True), laid_y, Laid(), used)
    added, pairs = cycle((True, True, False)), cycle(((0, 0), (3, 8), (0, 0), (8, 1), (1, 0)))
    for (short, long, pad), dtype, wide in product(_SLIM, ELEMENTWISE.values(), (False, True)):
        shape, (before_x, before_d) = (1, short, long) if wide else (1, long, short), next(pairs)
        laid_x = Laid(crossed=True, before=before_x, pad=0 if wide else pad)
        d = Laid(before=before_d, pad=pad if wide else 0)
        laid_y = d if next(added) else None
        used = next(factors) if laid_y else (1.0, 1.0)
        yield Case("production", shape, dtype, laid_x, laid_y, d, used)


def launch(gpu: GPU, compiler: KernelCompiler, case: Case, seed: int) -> tuple[str, int]:
    """Runs one sum on random numbers whose sums are exact; gives its kernels' names and how many elements are wrong."""
    rng = np.random.default_rng([seed, *case.shape])
    kind, size = case.dtype.numpy, case.dtype.itemsize
    laid = (case.x, case.y or Laid(), case.d)
    stored = [rng.integers(-60, 60, one.room(case.shape)).astype(kind) for one in laid]
    with (
        gpu.upload(stored[0], "X") as x,
        gpu.upload(stored[1], "Y") as y,
        gpu.empty(stored[2].nbytes) as d,
    ):
        d.fill_bytes(_DEVICE_BYTE)
        pointers = [buffer.pointer(name) for buffer, name in zip((x, y, d), "XYD", strict=True)]
        starts = [pointer.address + size * one.before for pointer, one in zip(pointers, laid, strict=True)]
        entries: dict[str, None] = {}
        for kernel, problem, (to_x, to_y, _, to_d) in case.launched(gpu.arch, (starts[0], starts[1], starts[2])):
            at = [Pointer(name, start + to) for name, start, to in zip("XYD", starts, (to_x, to_y, to_d), strict=True)]
            operands = GemmOperands(at[0], at[1], at[2], at[2], *case.factors)
            binary = compiler.binary(kernel, problem.dtype)
            for one in kernel.launches(problem, operands):
                gpu.launch(binary, one)
            entries[kernel.entry] = None
        gpu.synchronize()
        found = case.d.view(d.download(stored[2].shape, kind), case.shape)
    exact = np.int64 if kind.kind == "i" else np.float64
    alpha, beta = map(exact, case.factors)
    expected = case.x.view(stored[0], case.shape).astype(exact) * alpha
    if case.y is not None:
        expected = expected + case.y.view(stored[1], case.shape).astype(exact) * beta
    bits = f"i{size}"
    wrong = int(np.count_nonzero(np.ascontiguousarray(found).view(bits) != expected.astype(kind).view(bits)))
    return ", ".join(entries), wrong


def main() -> None:
    """Launches everything; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that compile")
    parser.add_argument("--every", type=int, default=1, help="launch every N-th kernel alone (default: 1)")
    args = parser.parse_args()
    gpu = GPU.get(0)
    todo = [*rungs(gpu.arch), *production()][:: args.every]
    wrong = 0
    with KernelCompiler(gpu.arch.target, args.workers) as compiler:
        for case in todo:
            # What is chosen depends on addresses through alignment alone, and every allocation is aligned.
            starts = [case.dtype.itemsize * (laid.before if laid else 0) for laid in (case.x, case.y, case.d)]
            for kernel, problem, _ in case.launched(gpu.arch, (starts[0], starts[1], starts[2])):
                compiler.order([kernel], problem.dtype)
        compiler.wait()
        for case in todo:
            entry, count = launch(gpu, compiler, case, args.seed)
            wrong += count > 0
            ways = "".join("-" if laid is None else "cr"[not laid.crossed] for laid in (case.x, case.y))
            sizes = "x".join(map(str, case.shape))
            said = f"{case.name:10} {entry:15} {sizes:12} {case.dtype.name:8} {ways} {case.factors}"
            print(f"{said}{f'  WRONG: {count} elements' if count else ''}", flush=True)
    print(f"{len(todo)} sums, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
