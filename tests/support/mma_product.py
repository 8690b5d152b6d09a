"""A batch of products of any strides by the tensor-core kernel, in the emulator: what tests of its types share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill import reference
from matmill.arch import ARCHES
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.emulator import Memory, Report, run
from matmill.jit.steps import ptx
from matmill.kernel import GemmOperands
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm.tiles import tile, with_vector_widths
from matmill.launch import Pointer
from matmill.problem import Gemm

Array = NDArray[Any]
SMALL = tile(64, 64, 64, 2, 2, stages=2)


@dataclass(frozen=True)
class Layout:
    """A matrix in its buffer: transposed or not, elements between rows, between columns, before the first."""

    transposed: bool = False
    pad: int = 0
    step: int = 1
    start: int = 0

    def made(self, batch: int, rows: int, columns: int, dtype: np.dtype[np.generic], fill: Array | None) -> Array:
        """Return a view [batch, rows, columns] of a buffer of NaN, with ``fill`` in it."""
        outer, inner = (columns, rows) if self.transposed else (rows, columns)
        pitch = inner * self.step + self.pad
        flat = np.full(self.start + batch * outer * pitch + self.step, np.nan, dtype)
        view = flat[self.start : self.start + batch * outer * pitch].reshape(batch, outer, pitch)
        view = view[:, :, : inner * self.step : self.step]
        view = view.swapaxes(1, 2) if self.transposed else view
        if fill is not None:
            view[...] = fill
        return view

    def align(self, view: Array) -> int:
        """Count the bytes to which the start of every contiguous run is aligned, at most 16."""
        bits = 16 | view.strides[0] | max(view.strides[1:]) | self.start * view.itemsize
        return bits & -bits


def buffer_of(view: Array) -> Array:
    """Return the whole buffer that a view is in."""
    while view.base is not None:
        view = view.base
    return view


class Product:
    """A batch of products on fresh random numbers, by HGEMM with a tile shape and k in some slices."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        a: Layout,
        b: Layout,
        d: Layout,
        *,
        c: Layout | None = None,
        dtype: str = "float16",
        batch: int = 1,
        arch: str = "h200",
        config: Config = SMALL,
        parts: int = 1,
        pads: str = "",
    ) -> None:
        m, n, k = shape
        element, self.arch = ALL[dtype], ARCHES[arch]
        rng = np.random.default_rng([*shape, batch])

        def drawn(rows: int, columns: int) -> Array:
            return rng.uniform(-1, 1, (batch, rows, columns)).astype(element.numpy)

        self.a = a.made(batch, m, k, element.numpy, drawn(m, k))
        self.b = b.made(batch, k, n, element.numpy, drawn(k, n))
        self.c = None if c is None else c.made(batch, m, n, element.numpy, drawn(m, n))
        self.d = d.made(batch, m, n, element.numpy, None)
        self.alpha, self.beta = -1.5, 0.0 if c is None else 0.75
        self.problem = Gemm(
            m, n, k, dtype=element, batch=batch,
            **strided(a=self.a, b=self.b, c=self.c, d=self.d),
            a_align=a.align(self.a), b_align=b.align(self.b), d_align=d.align(self.d), has_c=c is not None,
        )  # fmt: skip
        config = with_vector_widths(config, self.problem, pads)
        self.kernel = HGEMM.with_config(
            config.launched(SPLIT_K=parts, REPACK_A=int("A" in pads), REPACK_B=int("B" in pads))
        )

    def run(self, schedule: int = 0) -> list[Report]:
        """Run the kernel, what repacks matrices before it and what adds split-K partial sums after it."""
        assert self.kernel.why_not(self.problem, self.arch) is None
        memory = Memory()

        def bound(name: str, view: Array | None) -> Pointer:
            if view is None:
                return Pointer(name, 0)
            whole = buffer_of(view)
            first = memory.bind(name, whole, access="w" if name == "D" else "r")
            return Pointer(name, first.address + address(view) - address(whole))

        room = np.full(self.kernel.workspace(self.problem), 0xFF, np.uint8)
        operands = GemmOperands(
            bound("A", self.a), bound("B", self.b), bound("C", self.c), bound("D", self.d), self.alpha, self.beta,
            memory.bind("workspace", room, access="rw") if room.size else None,
        )  # fmt: skip
        steps = ptx(self.kernel, self.problem, operands, self.arch.target)
        return [run(text, launch, memory, late_copies=True, schedule=schedule) for text, launch in steps]

    def right(self) -> bool:
        """Tell whether every element is within its bound, and nothing was written beside D."""
        scalars = {"alpha": self.alpha, "beta": self.beta}
        inside = reference.check(np.ascontiguousarray(self.d), self.a, self.b, self.c, **scalars)
        return inside.ok and int(np.isfinite(buffer_of(self.d)).sum()) == self.d.size


def address(view: Array) -> int:
    """Give the address of its first element."""
    first: int = view.__array_interface__["data"][0]
    return first


def strided(**views: Array | None) -> dict[str, Any]:
    """Return the strides of a Gemm's matrices."""
    found: dict[str, Any] = {}
    for name, view in views.items():
        if view is not None:
            batch, row, column = (stride // view.itemsize for stride in view.strides)
            found |= {f"{name}_strides": (row, column), f"{name}_batch": batch}
    return found


PLAIN, TRANSPOSED = Layout(), Layout(transposed=True)
ODD = Layout(start=1)
LAYOUTS = [(a, b) for a in (PLAIN, TRANSPOSED) for b in (PLAIN, TRANSPOSED)]
