"""16-bit products on the matrix units: matrices that lie any way, every tile shape, k in parts, and the public path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import arch as arches
from matmill import reference
from matmill.arch import ARCHES
from matmill.choose import choose
from matmill.compile import compile_source
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.emulator import Memory, Report, run
from matmill.execute import Pointer
from matmill.kernel import GemmOperands
from matmill.kernels.hgemm import HGEMM, space
from matmill.mma_tiles import tile, with_copies
from matmill.problem import Gemm
from matmill.source import generate

Array = NDArray[Any]
SMALL = tile(64, 64, 64, 2, 2, stages=2)


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

    def align(self, view: Array) -> int:
        """Bytes to which every line's start is aligned, at most 16."""
        bits = 16 | view.strides[0] | max(view.strides[1:]) | self.start * 2
        return bits & -bits


def buffer_of(view: Array) -> Array:
    """The whole buffer that a view is in."""
    while view.base is not None:
        view = view.base
    return view


class Product:
    """A batch of products on fresh random numbers, by HGEMM with a tile shape and k in some parts."""

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
        config: Config = SMALL,
        parts: int = 1,
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
        self.kernel = HGEMM.with_config(with_copies(config, self.problem).launched(GS=parts))

    def run(self, schedule: int = 0) -> list[Report]:
        """Runs the kernel, and what adds the parts of k."""
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
        ptx = compile_source(generate(self.kernel, self.problem.dtype), self.arch.target).ptx
        launches = self.kernel.launches(self.problem, operands)
        return [run(ptx, launch, memory, late_copies=True, schedule=schedule) for launch in launches]

    def right(self) -> bool:
        """Whether every element is within its bound, and nothing was written beside D."""
        scalars = {"alpha": self.alpha, "beta": self.beta}
        inside = reference.check(np.ascontiguousarray(self.d), self.a, self.b, self.c, **scalars)
        return inside.ok and int(np.isfinite(buffer_of(self.d)).sum()) == self.d.size


def address(view: Array) -> int:
    """Where its first element lies."""
    first: int = view.__array_interface__["data"][0]
    return first


def strided(**views: Array | None) -> dict[str, Any]:
    """The strides of a Gemm's matrices."""
    found: dict[str, Any] = {}
    for name, view in views.items():
        if view is not None:
            batch, row, column = (stride // view.itemsize for stride in view.strides)
            found |= {f"{name}_strides": (row, column), f"{name}_batch": batch}
    return found


PLAIN, TURNED = Laid(), Laid(turned=True)
LAYOUTS = [(a, b) for a in (PLAIN, TURNED) for b in (PLAIN, TURNED)]


@pytest.mark.parametrize("arch", ["t4", "h200"])
@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=lambda laid: "turned" if laid.turned else "plain")
def test_every_pair_of_layouts(a: Laid, b: Laid, arch: str) -> None:
    product = Product((72, 80, 136), a, b, PLAIN, arch=arch)
    config = product.kernel.config
    assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (8, 8, 8)
    (report,) = product.run()
    assert report.ok
    assert product.right()
    # Transposed or not: no fragment, no copy and no slab meets a bank conflict.
    assert report.counters.bank_conflicts == 0


@pytest.mark.parametrize("parts", [1, 3])
def test_batches_with_c_of_another_layout(parts: int) -> None:
    product = Product((66, 72, 140), PLAIN, TURNED, PLAIN, c=TURNED, dtype="bfloat16", batch=3, parts=parts)
    assert all(report.ok for report in product.run())
    assert product.right()


LAID = st.builds(
    Laid, st.booleans(), st.sampled_from([0, 1, 2, 8]), st.sampled_from([1, 1, 3]), st.sampled_from([0, 1, 2])
)


@settings(max_examples=6, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 80), st.integers(1, 80), st.integers(1, 140)),
    a=LAID,
    b=LAID,
    d=LAID,
    c=st.none() | LAID,
    dtype=st.sampled_from(["float16", "bfloat16"]),
    parts=st.integers(1, 4),
)
def test_any_strides(  # noqa: PLR0917 — drawn
    shape: tuple[int, int, int], a: Laid, b: Laid, d: Laid, c: Laid | None, dtype: str, parts: int
) -> None:
    product = Product(shape, a, b, d, c=c, dtype=dtype, parts=parts)
    assert all(report.ok for report in product.run())
    assert product.right()


def shapes_of(arch: str) -> list[Config]:
    """The tile shapes of a GPU, for aligned matrices and for odd ones."""
    whole = Gemm(4096, 4096, 4096, dtype=ALL["float16"])
    odd = replace(whole, m=4095, n=4095, k=4095, a_align=2, b_align=2, d_align=2)
    return list({config: None for problem in (whole, odd) for config in space(problem, ARCHES[arch])})


@pytest.mark.parametrize(
    ("arch", "config"),
    [(arch, config) for arch in ("t4", "h200") for config in shapes_of(arch)],
    ids=lambda x: x if isinstance(x, str) else "-".join(str(x[name]) for name in ("BM", "BN", "BK", "A_VEC")),
)
def test_every_tile_shape(arch: str, config: Config) -> None:
    odd = config["A_VEC"] == 1
    side = 1 if odd else 8
    product = Product((128 + side, 128 + side, 64 + side), PLAIN, PLAIN, PLAIN, arch=arch, config=config)
    assert product.kernel.config["A_VEC"] == config["A_VEC"]
    assert all(report.ok for report in product.run())
    assert product.right()


def test_parts_that_have_no_terms_add_nothing() -> None:
    product = Product((10, 20, 130), PLAIN, PLAIN, PLAIN, parts=7)
    assert [report.ok for report in product.run(schedule=1)] == [True, True]
    assert product.right()


# -- the public path --------------------------------------------------------------------------------------------------


def drawn(seed: int, *shape: int, dtype: str = "float16") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(ALL[dtype].numpy)


def emulated(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="emulator", **options)


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ((131, 67), (67, 150), "float16"),
        ((200,), (200, 130), "bfloat16"),
        ((130, 40), (40,), "float16"),
        ((17, 1030), (1030, 140), "bfloat16"),
        ((2, 1, 129, 17), (1, 2, 17, 33), "float16"),
        ((3, 90, 8), (8, 5), "bfloat16"),
    ],
)
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = drawn(0, *left, dtype=dtype), drawn(1, *right, dtype=dtype)
    assert reference.check(emulated(a, b), a, b).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_views_scalars_and_a_result_in_place(dtype: str) -> None:
    a, b = drawn(0, 45, 130, dtype=dtype).T[::-1], drawn(1, 70, 90, dtype=dtype)[:, ::2].T
    c, bias = drawn(2, 130, 70, dtype=dtype), drawn(3, 70, dtype=dtype)
    before, rows = c.copy(), np.repeat(bias[None], 130, axis=0)
    assert emulated(a, b, c, alpha=0.5, beta=-2, out=c) is c
    assert reference.check(c, a, b, before, alpha=0.5, beta=-2).ok
    assert reference.check(emulated(a, b, bias, beta=1), a, b, rows, beta=1).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_not_read_and_what_is_not_finite(dtype: str) -> None:
    a, b, c = drawn(0, 130, 20, dtype=dtype), drawn(1, 20, 40, dtype=dtype), drawn(2, 130, 40, dtype=dtype)
    a[3, 7], a[129, 9], b[15, 3] = np.nan, np.inf, -np.inf
    assert reference.check(emulated(a, b, np.full_like(c, np.nan)), a, b).ok
    assert (emulated(a, b, c, alpha=0, beta=2) == c + c).all()


@pytest.mark.parametrize(("k", "dtype"), [(40, "float16"), (1100, "bfloat16")])
def test_a_gram_matrix_is_symmetric_to_the_bit(k: int, dtype: str) -> None:
    a = drawn(0, 130, k, dtype=dtype)
    gram = emulated(a, a.T)
    assert reference.check(gram, a, a.T).ok
    assert gram.tobytes() == gram.T.copy().tobytes()


def test_on_a_gpu_without_asynchronous_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arches, "DEFAULT", "t4")
    a, b = drawn(0, 140, 140), drawn(1, 140, 140)
    assert choose(Gemm(140, 140, 140, dtype=ALL["float16"]), ARCHES["t4"]).kernel.entry == "hgemm"
    assert reference.check(emulated(a, b[:, 3:]), a, b[:, 3:]).ok
