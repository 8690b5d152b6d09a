"""Sums of two matrices of any layout, one of them transposed, whose every bit is known beforehand."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import gcd
from typing import Any

import numpy as np

from matmill.choose import choose_transpose_add
from matmill.dtypes import BITS, DType
from matmill.emulator import Report
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands, Kernel
from matmill.launch import Pointer
from matmill.problem import Geam, View
from support.strided import ALIGN, H200, Array, Layout, Strided, buffer_of

#: X, Y and D.
Layouts = tuple[Layout, Layout | None, Layout]


class StridedSum(Strided[Geam]):
    """D = alpha X + beta Y for a batch, by the kernel that is chosen for it; without a Y beta is 0.

    Of a sum ``in_place`` Y and D are one matrix. Elements are integers so small that sums are exact in every type, of
    complex elements their parts; ``conjugates`` are those of X and Y, by name.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dtype: DType,
        layouts: Layouts,
        scalars: tuple[complex, complex] = (1.0, 1.0),
        *,
        in_place: bool = False,
        conjugates: str = "",
    ) -> None:
        x, y, d = layouts
        self.shape, self.dtype, self.layouts, self.in_place = shape, dtype, layouts, in_place
        self.factors = scalars
        self.conjugates = conjugates
        batch, m, n = shape
        plain = y is None and scalars[0] == 1 and not conjugates
        self.problem = Geam(
            m,
            n,
            BITS[dtype.itemsize] if plain else dtype,
            replace(self._view(x), conjugate="X" in conjugates),
            replace(self._view(d if in_place else y), conjugate="Y" in conjugates) if y is not None else None,
            self._view(d),
            batch,
            plain,
        )
        self.kernel: Kernel[Geam] = choose_transpose_add(self.problem, H200).kernel

    @property
    def x(self) -> Array:
        """X, [batch, m, n]."""
        return self.arrays["X"]

    @property
    def y(self) -> Array | None:
        """Y, [batch, m, n], or None."""
        return self.arrays.get("Y")

    @property
    def d(self) -> Array:
        """The result, [batch, m, n]."""
        return self.arrays["D"]

    def _view(self, layout: Layout) -> View:
        """Describe a matrix as a problem does; buffers start on 16 bytes."""
        size, d = self.dtype.itemsize, self.layouts[2]
        (batch, row, column), (d_batch, d_row, _) = (one.strides(*self.shape[1:]) for one in (layout, d))
        pitch = column if layout.transposed else row
        align = gcd(ALIGN, layout.start * size, pitch * size, batch * size)
        apart = (layout.start - d.start, batch - d_batch, row - d_row)
        return View((row, column), batch, align, gcd(ALIGN, *(elements * size for elements in apart)))

    def _matrices(self) -> dict[str, Array]:
        rng = np.random.default_rng([*self.shape, self.dtype.itemsize])
        x, y, d = self.layouts
        arrays = {"D": self._drawn(rng, d), "X": self._drawn(rng, x)}
        if y is not None:
            arrays["Y"] = arrays["D"] if self.in_place else self._drawn(rng, y)
        return arrays

    def _drawn(self, rng: np.random.Generator, layout: Layout) -> Array:
        """Return small integers in a buffer whose other bits are ones."""
        view = layout.view(*self.shape, self.dtype.numpy)
        view[...] = rng.integers(-60, 60, self.shape)
        if self.dtype.part is not None:
            view.imag = rng.integers(-60, 60, self.shape)
        return view

    def _operands(self, pointers: dict[str, Pointer], workspace: Pointer, counter: Pointer | None) -> GemmOperands:
        y = pointers.get("Y", Pointer("Y", 0))
        alpha, beta = self.factors
        return GemmOperands(
            pointers["X"], y, y, pointers["D"], alpha.real, beta.real,
            workspace=workspace, counter=counter, imaginary=(alpha.imag, beta.imag),
        )  # fmt: skip

    def source(self) -> Source:
        """Return the kernel's source for this problem."""
        return generate(self.kernel, self.problem.dtype)

    def expected(self) -> Array:
        """Return what D must be afterwards, to the bit, but for the signs of complex zeros."""
        wide: Any = {"i": np.int64, "c": np.complex128}.get(self.x.dtype.kind, np.float64)
        matrices = [(name, array) for name, array in (("X", self.x), ("Y", self.y)) if array is not None]
        terms = [
            (array.conj() if name in self.conjugates else array).astype(wide) * wide(factor)
            for (name, array), factor in zip(matrices, self.factors, strict=False)
        ]
        return np.asarray(reduce(np.add, terms), self.x.dtype)

    def run(self, source: Source | None = None) -> Report:
        """Run the kernel, whose source ``source`` may replace."""
        (report,) = self.emulated(self.kernel, source=source)
        return report

    def excess(self, kernel: Kernel[Geam] | None = None) -> float:  # noqa: ARG002 — sums are exact in any kernel
        """Return 0 where every bit is what it must be, else infinity."""
        untouched, whole = self.untouched(), buffer_of(self.d)
        after = whole.copy()
        self.restore()  # Y may be D
        expected = self.expected()
        whole[...] = after
        same = bool((self.d == expected).all()) if self.dtype.part else self.d.tobytes() == expected.tobytes()
        return 0.0 if untouched and same else np.inf


def check(trial: StridedSum) -> Report:
    """Run the sum's kernel and compare every element, and the rest of D's buffer, which must not change."""
    report = trial.run()
    assert not report.hazards
    assert trial.excess() == 0
    return report
