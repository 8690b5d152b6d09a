"""The tensor-core pipeline on matrices that lie any way: either dimension contiguous or none, odd starts, batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill import reference
from matmill.arch import ARCHES
from matmill.compile import compile_source
from matmill.dtypes import ALL
from matmill.emulator import Memory, Report, run
from matmill.execute import Launch, Pointer
from matmill.ladder.hgemm.float32_sums import FLOAT32_SUMS
from matmill.mma_tiles import against, tile, tiles, with_copies
from matmill.problem import Gemm
from matmill.source import Source, generate

Array = NDArray[np.generic]
KERNEL = """#include "matmill/tile/mma_gemm.cuh"
using Tile = matmill::MmaGemm<Scalar, Config>;
extern "C" __global__ void __launch_bounds__(Tile::THREADS, Config::BLOCKS_PER_SM)
    any_strides(const Scalar* A, const Scalar* B, const Scalar* C, Scalar* D, int m, int n, int k, long long a_row,
                long long a_col, long long a_batch, long long b_row, long long b_col, long long b_batch,
                long long c_row, long long c_col, long long c_batch, long long d_row, long long d_col,
                long long d_batch, float alpha, float beta) {
  extern __shared__ __align__(128) unsigned char shared[];
  const matmill::Origin origin = matmill::tile_of<Tile, Config::GROUP>(blockIdx.x, m, n);
  const long long batch = blockIdx.y;
  Tile tile;
  tile.run(shared, Tile::CopyA(A + batch * a_batch + origin.row * a_row, a_row, a_col, m - origin.row, k),
           Tile::CopyB(B + batch * b_batch + origin.column * b_col, b_col, b_row, n - origin.column, k), k);
  tile.store(shared, C + batch * c_batch, c_row, c_col, D + batch * d_batch, d_row, d_col, origin, m, n, alpha, beta);
}
"""


@dataclass(frozen=True)
class Laid:
    """How a matrix lies in its buffer: transposed or not, elements between rows, between columns, before the first."""

    turned: bool = False
    pad: int = 0
    step: int = 1
    start: int = 0

    def made(self, batch: int, rows: int, columns: int, dtype: np.dtype[np.generic], fill: Array | None) -> Array:
        """A view [batch, rows, columns] of a buffer of NaN, with ``fill`` in it."""
        outer, inner = (columns, rows) if self.turned else (rows, columns)
        line = inner * self.step + self.pad
        flat = np.full(self.start + batch * outer * line + self.step, np.nan, dtype)
        view = flat[self.start : self.start + batch * outer * line].reshape(batch, outer, line)
        view = view[:, :, : inner * self.step : self.step]
        view = view.swapaxes(1, 2) if self.turned else view
        if fill is not None:
            view[...] = fill
        return view

    def align(self, line: int) -> int:
        """Bytes to which every line's start is aligned, at most 16, for lines ``line`` elements apart."""
        bits = 16 | line * 2 | self.start * 2
        return bits & -bits


def buffer_of(view: Array) -> Array:
    """The whole buffer that a view is in."""
    while view.base is not None:
        view = view.base
    return view


class Product:
    """A batch of products on fresh random numbers."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        a: Laid,
        b: Laid,
        d: Laid,
        *,
        c: Laid | None = None,
        dtype: str = "float16",
        batch: int = 1,
        arch: str = "h200",
    ) -> None:
        m, n, k = shape
        self.element, self.arch = ALL[dtype], ARCHES[arch]
        rng = np.random.default_rng([*shape, batch])

        def drawn(rows: int, columns: int) -> Array:
            return rng.uniform(-1, 1, (batch, rows, columns)).astype(self.element.numpy)

        self.a = a.made(batch, m, k, self.element.numpy, drawn(m, k))
        self.b = b.made(batch, k, n, self.element.numpy, drawn(k, n))
        self.c = None if c is None else c.made(batch, m, n, self.element.numpy, drawn(m, n))
        self.d = d.made(batch, m, n, self.element.numpy, None)
        self.alpha, self.beta = -1.5, 0.0 if c is None else 0.75
        strides = {name: self._strides(view) for name, view in (("a", self.a), ("b", self.b), ("d", self.d))}
        self.problem = Gemm(
            m, n, k, dtype=self.element, batch=batch,
            a_strides=strides["a"][:2], b_strides=strides["b"][:2], d_strides=strides["d"][:2],
            a_align=a.align(max(strides["a"][:2])), b_align=b.align(max(strides["b"][:2])),
            d_align=d.align(max(strides["d"][:2])),
        )  # fmt: skip
        self.config = with_copies(tile(64, 64, 64, 2, 2, stages=2), self.problem)

    def _strides(self, view: Array | None) -> tuple[int, int, int]:
        """Row, column and batch stride in elements."""
        if view is None:
            return 0, 0, 0
        batch, row, column = (stride // 2 for stride in view.strides)
        return row, column, batch

    def run(self) -> Report:
        """Runs the kernel with this problem's constants."""
        assert against(self.problem, self.config, self.arch) is None
        made = generate(FLOAT32_SUMS.kernel.with_config(self.config), self.element)
        headers = {name: KERNEL if name.endswith("kernel.cuh") else text for name, text in made.headers}
        source: Source = replace(made, entry="any_strides", headers=tuple(sorted(headers.items())))
        memory = Memory()
        pointers: list[Pointer] = []
        for name, view in (("A", self.a), ("B", self.b), ("C", self.c), ("D", self.d)):
            if view is None:
                pointers.append(replace(pointers[0], name=name))
                continue
            whole = buffer_of(view)
            bound = memory.bind(name, whole, access="w" if name == "D" else "r")
            offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
            pointers.append(Pointer(name, bound.address + offset))
        problem = self.problem
        strides = [x for view in (self.a, self.b, self.c, self.d) for x in self._strides(view)]
        scalars = (np.float32(self.alpha), np.float32(self.beta))
        sizes = (np.int32(problem.m), np.int32(problem.n), np.int32(problem.k))
        launch = Launch(
            "any_strides", "any_strides", (tiles(problem, self.config), problem.batch, 1), (128, 1, 1),
            (*pointers, *sizes, *map(np.int64, strides), *scalars), self.config["SHARED_BYTES"],
        )  # fmt: skip
        return run(compile_source(source, self.arch.target).ptx, launch, memory, late_copies=True)

    def right(self) -> bool:
        """Whether every element is within its bound, and nothing was written beside D."""
        scalars = {"alpha": self.alpha, "beta": self.beta}
        inside = reference.check(np.ascontiguousarray(self.d), self.a, self.b, self.c, **scalars)
        return inside.ok and int(np.isfinite(buffer_of(self.d)).sum()) == self.d.size


PLAIN, TURNED = Laid(), Laid(turned=True)
LAYOUTS = [(a, b) for a in (PLAIN, TURNED) for b in (PLAIN, TURNED)]


@pytest.mark.parametrize("arch", ["t4", "h200"])
@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=lambda laid: "turned" if laid.turned else "plain")
def test_every_pair_of_layouts(a: Laid, b: Laid, arch: str) -> None:
    product = Product((72, 80, 136), a, b, PLAIN, arch=arch)
    assert (product.config["A_VEC"], product.config["B_VEC"], product.config["D_VEC"]) == (8, 8, 8)
    report = product.run()
    assert report.ok
    assert product.right()
    # Transposed or not: no fragment, no copy and no slab meets a bank conflict.
    assert report.counters.bank_conflicts == 0


def test_batches_with_c_of_another_layout() -> None:
    product = Product((66, 72, 40), PLAIN, TURNED, PLAIN, c=TURNED, dtype="bfloat16", batch=3)
    assert product.run().ok
    assert product.right()


LAID = st.builds(
    Laid, st.booleans(), st.sampled_from([0, 1, 2, 8]), st.sampled_from([1, 1, 3]), st.sampled_from([0, 1, 2])
)


@settings(max_examples=8, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 80), st.integers(1, 80), st.integers(1, 140)),
    a=LAID,
    b=LAID,
    d=LAID,
    c=st.none() | LAID,
    dtype=st.sampled_from(["float16", "bfloat16"]),
)
def test_any_strides(  # noqa: PLR0917 — drawn
    shape: tuple[int, int, int], a: Laid, b: Laid, d: Laid, c: Laid | None, dtype: str
) -> None:
    product = Product(shape, a, b, d, c=c, dtype=dtype)
    assert product.run().ok
    assert product.right()
