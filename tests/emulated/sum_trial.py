"""A sum of two matrices that lie any way in the emulator: any dtype, pitch and start, D poisoned by other numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from emulated.inner_trial import H200, TARGET
from matmill.choose import choose_sum
from matmill.compile import compile_ptx
from matmill.dtypes import BITS, DType
from matmill.emulator import Memory, Report, run
from matmill.kernel import GemmOperands, Kernel
from matmill.problem import Geam, View
from matmill.source import Source, generate

Array = NDArray[np.generic]
ALIGN = 16


@dataclass(frozen=True)
class Placed:
    """How a matrix is stored: across (its transpose is row-major), elements between lines beyond their own, and before.

    ``apart`` is the distance between neighbours along a line.
    """

    crossed: bool = False
    pad: int = 0
    before: int = 0
    apart: int = 1


def stored(shape: tuple[int, int, int], dtype: DType, how: Placed, rng: np.random.Generator) -> Array:
    """Random matrices of the batch, as they are stored: integers small enough that sums are exact in every type."""
    batch, m, n = shape
    lines, length = (n, m) if how.crossed else (m, n)
    pitch = length * how.apart + how.pad
    values = rng.integers(-60, 60, how.before + batch * lines * pitch).astype(dtype.numpy)
    size = dtype.itemsize
    strides = (lines * pitch * size, pitch * size, how.apart * size)
    found = np.lib.stride_tricks.as_strided(values[how.before :], (batch, lines, length), strides)
    return found.transpose(0, 2, 1) if how.crossed else found


def view_of(x: Array, d: Array, how: Placed) -> View:
    """The operand as the problem describes it; the emulator's buffers start on 16 bytes."""
    size = x.itemsize
    batch, row, column = (stride // size for stride in x.strides)
    line = column if how.crossed else row
    align = gcd(ALIGN, how.before * size, line * size, batch * size)
    apart = [how.before * size - (d.ctypes.data % ALIGN), x.strides[0] - d.strides[0], x.strides[1] - d.strides[1]]
    return View((row, column), batch, align, gcd(ALIGN, *apart))


class SumTrial:
    """One sum on fresh numbers, D starting as something else; ``in_place`` makes Y and D the same memory."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        dtype: DType,
        places: tuple[Placed, Placed | None, Placed],
        scalars: tuple[float, float] = (1.0, 1.0),
        *,
        in_place: bool = False,
    ) -> None:
        rng = np.random.default_rng([*shape, dtype.itemsize])
        x, y, d = places
        self.scalars = scalars
        self.d = stored(shape, dtype, d, rng)
        self.x = stored(shape, dtype, x, rng)
        self.y = None if y is None else self.d if in_place else stored(shape, dtype, y, rng)
        batch, m, n = shape
        start = Placed(before=d.before)
        views = [
            view_of(self.x, self.d, x),
            None if self.y is None or y is None else view_of(self.y, self.d, d if in_place else y),
            view_of(self.d, self.d, replace(d, before=start.before)),
        ]
        assert views[0] is not None
        assert views[2] is not None
        plain = y is None and scalars[0] == 1
        own = BITS[dtype.itemsize] if plain else dtype
        self.problem = Geam(m, n, own, views[0], views[1], views[2], batch, plain)
        self.kernel: Kernel[Geam] = choose_sum(self.problem, H200).kernel

    def source(self) -> Source:
        """The kernel's source for this problem."""
        return generate(self.kernel, self.problem.dtype)

    def expected(self) -> Array:
        """What D must be afterwards, to the bit: all sums are exact."""
        alpha, beta = self.scalars
        wide = np.int64 if self.x.dtype.kind == "i" else np.float64
        total = self.x.astype(wide) * wide(alpha)
        if self.y is not None:
            total = total + self.y.astype(wide) * wide(beta)
        return total.astype(self.x.dtype)

    def run(self, source: Source | None = None) -> Report:
        """One launch."""
        assert self.kernel.why_not(self.problem, H200) is None
        memory = Memory()
        d = memory.bind("D", self.d, access="rw")
        same = self.y is not None and self.y is self.d
        y = d if same else memory.bind("Y", self.y, access="r")
        operands = GemmOperands(memory.bind("X", self.x, access="r"), y, y, d, *self.scalars)
        ptx = compile_ptx(source or self.source(), TARGET)
        return run(ptx, self.kernel.launch(self.problem, operands), memory, races=True)


def check(trial: SumTrial) -> Report:
    """Runs and compares every element."""
    expected = trial.expected()
    report = trial.run()
    assert not report.hazards
    assert trial.d.tobytes() == expected.tobytes()
    return report


ROWS = Placed()
ACROSS = Placed(crossed=True)
