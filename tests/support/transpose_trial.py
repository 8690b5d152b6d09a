"""A sum of two matrices of any strides in the emulator: any dtype, pitch and start, D poisoned by other numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.choose import choose_transpose_add
from matmill.dtypes import BITS, DType
from matmill.emulator import Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Pointer
from matmill.problem import Geam, View
from support.trial import H200, TARGET

Array = NDArray[np.generic]
ALIGN = 16


@dataclass(frozen=True)
class Placed:
    """How a matrix is stored: across (its transpose is row-major), elements between contiguous runs, and before.

    ``apart`` is the distance between neighbours of a run.
    """

    crossed: bool = False
    pad: int = 0
    before: int = 0
    apart: int = 1


def stored(shape: tuple[int, int, int], dtype: DType, how: Placed, rng: np.random.Generator) -> Array:
    """Return random matrices of the batch, as they are stored.

    They are integers small enough that sums are exact in every type.
    """
    batch, m, n = shape
    runs, length = (n, m) if how.crossed else (m, n)
    pitch = length * how.apart + how.pad
    values = rng.integers(-60, 60, how.before + batch * runs * pitch).astype(dtype.numpy)
    size = dtype.itemsize
    strides = (runs * pitch * size, pitch * size, how.apart * size)
    found = np.lib.stride_tricks.as_strided(values[how.before :], (batch, runs, length), strides)
    return found.transpose(0, 2, 1) if how.crossed else found


def view_of(x: Array, d: Array, how: Placed) -> View:
    """Give operand as the problem describes it: it starts as many elements behind 16 bytes as there are before it."""
    size = x.itemsize
    batch, row, column = (stride // size for stride in x.strides)
    pitch = column if how.crossed else row
    align = gcd(ALIGN, how.before * size, pitch * size, batch * size)
    apart = [how.before * size - (d.ctypes.data % ALIGN), x.strides[0] - d.strides[0], x.strides[1] - d.strides[1]]
    return View((row, column), batch, align, gcd(ALIGN, *apart))


class TransposeTrial:
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
        self.kernel: Kernel[Geam] = choose_transpose_add(self.problem, H200).kernel

    def source(self) -> Source:
        """Return the kernel's source for this problem."""
        return generate(self.kernel, self.problem.dtype)

    def expected(self) -> Array:
        """Return what D must be afterwards, to the bit: all sums are exact."""
        alpha, beta = self.scalars
        wide = np.int64 if self.x.dtype.kind == "i" else np.float64
        total = self.x.astype(wide) * wide(alpha)
        if self.y is not None:
            total = total + self.y.astype(wide) * wide(beta)
        return total.astype(self.x.dtype)

    def run(self, source: Source | None = None) -> Report:
        """Return one launch."""
        assert self.kernel.why_not(self.problem, H200) is None
        memory = Memory()
        d = self._bound(memory, "D", self.d, "rw")
        same = self.y is not None and self.y is self.d
        y = d if same else self._bound(memory, "Y", self.y, "r")
        operands = GemmOperands(self._bound(memory, "X", self.x, "r"), y, y, d, *self.scalars)
        ptx = compile_ptx(source or self.source(), TARGET)
        return run(ptx, self.kernel.launch(self.problem, operands), memory, races=True)

    def _bound(self, memory: Memory, name: str, array: Array | None, access: str) -> Pointer:
        """Return the matrix in its own memory, of which there is no more than from 16 bytes before it on."""
        if array is None:
            return memory.bind(name, None, access=access)
        size, whole = array.itemsize, memory_of(array)
        start = (array.ctypes.data - whole.ctypes.data) // size
        reaches = [(extent - 1) * stride // size for extent, stride in zip(array.shape, array.strides, strict=True)]
        low, high = (start + sum(sign(reach, 0) for reach in reaches) for sign in (min, max))
        low -= low % (ALIGN // size)
        pointer = memory.bind(name, whole[low : high + 1], access=access)
        return Pointer(name, pointer.address + (start - low) * size)


def memory_of(view: Any) -> Any:
    """Return the array that a view is of."""
    while getattr(view, "base", None) is not None:
        view = view.base
    return view


def check(trial: TransposeTrial) -> Report:
    """Run and compare every element, and the rest of D's memory, which must not change."""
    expected, memory = trial.expected(), memory_of(trial.d)
    around, own = memory.copy(), trial.d.copy()
    report = trial.run()
    assert not report.hazards
    assert trial.d.tobytes() == expected.tobytes()
    found = trial.d.copy()
    trial.d[...] = own
    assert memory.tobytes() == around.tobytes()
    trial.d[...] = found
    return report


ROWS = Placed()
ACROSS = Placed(crossed=True)
