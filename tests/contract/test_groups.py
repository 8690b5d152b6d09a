"""The contract of products of groups: lists of matrices, and groups whose ends are on the device, on every executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill.arch import get
from matmill.arrays import Operand, inspect
from matmill.choose import choose_from, entries
from matmill.dispatch.groups import ELEMENTS, listed
from matmill.dispatch.lists import row
from matmill.dtypes import ALL, F16, PRODUCTS
from matmill.emulator import Memory, run
from matmill.errors import ArgumentError, DTypeError, MatmillError, ShapeError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import generate
from matmill.kernel import GemmOperands
from matmill.launch import Pointer
from matmill.problem import Gemm, Grouped
from matmill.reference import check
from matmill.settings import Executor
from support.examples import examples

Array = NDArray[Any]
#: Sizes of groups: none, one row, whole tiles, more than a tile, and what is left over behind them.
SIZES = ((5, 0, 70, 130, 1), (0, 0), (128, 64), (3,))
LEFT = 7
FORMS = ("rows", "terms", "columns")
H200 = get("h200")
FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
#: Rows, terms and columns of the products of a list.
LIST = ((16, 64, 72), (66, 72, 136), (0, 8, 8), (7, 0, 16), (130, 24, 40), (1, 8, 8), (0, 0, 0))


def draw(seed: int, *shape: int, dtype: str) -> Array:
    """Draw normal numbers, or whole ones of a type of integers."""
    rng, kind = np.random.default_rng(seed), ELEMENTS[dtype]
    if kind.is_integer:
        return rng.integers(0, 2**63, shape, np.int64).astype(kind.numpy)
    return rng.standard_normal(shape).astype(kind.numpy)


def operands(form: str, sizes: Sequence[int], p: int, q: int, dtype: str) -> tuple[Array, Array, Array]:
    """Return A, B and the offsets; some places behind the last group are nobody's."""
    total, groups = sum(sizes) + LEFT, len(sizes)
    a, b = {
        "rows": ((total, p), (groups, p, q)),
        "terms": ((p, total), (total, q)),
        "columns": ((groups, q, p), (p, total)),
    }[form]
    return draw(1, *a, dtype=dtype), draw(2, *b, dtype=dtype), np.cumsum(sizes).astype(np.int32)


def parts(form: str, a: Array, b: Array, d: Array, ends: Array) -> list[tuple[Array, Array, Array]]:
    """Return A, B and D of each group, and of what is behind the last one as a group of zeros."""
    bounds = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
    if form == "terms":
        return [(a[:, i:j], b[i:j], d[g]) for g, (i, j) in enumerate(bounds)]
    last = int(ends[-1])
    if form == "rows":
        tail = a[last:], np.zeros_like(b[0]), d[last:]
        return [*((a[i:j], b[g], d[i:j]) for g, (i, j) in enumerate(bounds)), tail]
    tail = np.zeros_like(a[0]), b[:, last:], d[:, last:]
    return [*((a[g], b[:, i:j], d[:, i:j]) for g, (i, j) in enumerate(bounds)), tail]


def verify(form: str, a: Array, b: Array, d: Array, ends: Array) -> None:
    """Fail the test where a group's product is wrong."""
    for x, y, z in parts(form, a, b, d, ends):
        if z.dtype.kind in "iu":
            assert np.array_equal(z, x @ y)
        elif z.size:
            verdict = check(z, x, y)
            assert verdict.ok, verdict


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_groups(form: str, sizes: tuple[int, ...], dtype: str, on: Executor) -> None:
    a, b, ends = operands(form, sizes, 72, 40, dtype)
    verify(form, a, b, matmill.grouped_mm(a, b, ends, executor=on), ends)
    verify(form, a, b, matmill.grouped_mm(a, b, ends, executor="cpu"), ends)


@examples(20, ignore=FIXTURE)
@given(
    st.sampled_from(FORMS),
    st.lists(st.integers(0, 90), min_size=1, max_size=40),
    st.tuples(st.integers(1, 80), st.integers(1, 80)),
    st.sampled_from(["float16", "bfloat16", "float32"]),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_any_groups_and_layouts(  # noqa: PLR0917 — Hypothesis gives them by position
    on: Executor, form: str, sizes: list[int], extents: tuple[int, int], dtype: str, ways: list[bool]
) -> None:
    a, b, ends = operands(form, sizes, *extents, dtype)
    by_columns_a, by_columns_b, backwards, spread, wide = ways
    a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if by_columns_a else a
    b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2) if by_columns_b else b
    a = np.ascontiguousarray(a[..., ::-1])[..., ::-1] if backwards else a
    places = np.repeat(ends, 2)[::2] if spread else ends
    result = matmill.grouped_mm(a, b, places.astype(np.int64) if wide else places, executor=on)
    verify(form, a, b, result, ends)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_a_group_does_not_see_its_neighbours(form: str, dtype: str, on: Executor) -> None:
    a, b, ends = operands(form, (5, 40, 30), 64, 64, dtype)
    for whole, along in ((a, 0 if form == "rows" else 1), (b, 1 if form == "columns" else 0)):
        if whole.ndim == 2:
            np.moveaxis(whole, along, 0)[:5] = np.nan
            np.moveaxis(whole, along, 0)[45:] = np.inf
    d = matmill.grouped_mm(a, b, ends, executor=on)
    for number, (x, y, z) in enumerate(parts(form, a, b, d, ends)[:3]):
        assert np.isfinite(z.astype(np.float64)).all() == (number == 1)
        if number == 1:
            assert check(z, x, y).ok


@pytest.mark.parametrize("form", FORMS)
def test_offsets_lead_nowhere_else(form: str, on: Executor) -> None:
    a, b, _ = operands(form, (5, 40, 30), 16, 24, "float16")
    for ends in ([-7, 40, 10**9], [60, 20, 75], [2**31 - 1] * 3):
        d = matmill.grouped_mm(a, b, np.array(ends), executor=on)
        assert np.isfinite(d.astype(np.float32)).all()
    bounds = np.clip([-7, 40, 10**9], 0, 82)
    verify(form, a, b, matmill.grouped_mm(a, b, np.array([-7, 40, 10**9]), executor=on), bounds)


def test_scalars_and_out(on: Executor) -> None:
    a, b, ends = operands("rows", (5, 9), 8, 6, "float64")
    out = np.full((21, 12), np.nan)
    assert matmill.grouped_mm(a, b, ends, alpha=-2, out=out[:, ::2], executor=on) is not None
    verify("rows", -2 * a, b, out[:, ::2], ends)
    assert np.isnan(out[:, 1::2]).all()
    assert not matmill.grouped_mm(a * np.nan, b, ends, alpha=0, executor=on).any()
    nobody = matmill.grouped_mm(a, b[:0], np.zeros(0, np.int64), executor=on)
    assert nobody.shape == (21, 6)
    assert not nobody.any()
    for left, right, shape in (((0, 8), (2, 8, 6), (0, 6)), ((3, 0), (0, 6), (2, 3, 6)), ((2, 3, 4), (4, 0), (3, 0))):
        x, y = np.ones(left, np.float32), np.ones(right, np.float32)
        empty = matmill.grouped_mm(x, y, np.array([0, 0]), executor=on)
        assert empty.shape == shape
        assert not empty.any()


@pytest.mark.parametrize(
    ("a", "b", "offsets", "error", "words"),
    [
        ((4, 3), (2, 3, 5), np.array([1, 2, 3]), ShapeError, r"offsets: got shape \(3,\); wanted \(2,\)"),
        ((4, 3), (2, 4, 5), np.array([1, 2]), ShapeError, r"last dimension of a \(3\) to equal b's second-last \(4\)"),
        ((2, 4, 3), (2, 3, 5), np.array([1, 2]), ShapeError, "Use matmul for batches"),
        ((4, 3), (3, 5), np.array([[1, 2]]), ShapeError, "wanted one dimension"),
        ((4, 3), (2, 3, 5), np.array([1.0, 2.0]), DTypeError, "offsets"),
    ],
)
def test_refusals(a: Any, b: Any, offsets: Any, error: type[MatmillError], words: str) -> None:
    x, y = np.zeros(a, np.float32), np.zeros(b, np.float32)
    with pytest.raises(error, match=words):
        matmill.grouped_mm(x, y, offsets, executor="cpu")
    with pytest.raises(DTypeError, match="b: got dtype float64; wanted a's float32"):
        matmill.grouped_mm(np.zeros((4, 3), np.float32), np.zeros((2, 3, 5)), np.array([1, 2]), executor="cpu")
    with pytest.raises(DTypeError, match=r"numpy.asarray\(offsets, dtype='int64'\)"):
        matmill.grouped_mm(x, y, [1, 2], executor="cpu")
    with pytest.raises(DTypeError, match="complex64"):
        matmill.grouped_mm(np.zeros((4, 3), np.complex64), np.zeros((2, 3, 5), np.complex64), np.array([1, 2]))


def lists(dtype: str, sizes: Sequence[tuple[int, int, int]] = LIST) -> tuple[list[Array], list[Array], list[Array]]:
    """Return lists of A, B and C."""
    shapes = [((m, k), (k, n), (m, n)) for m, k, n in sizes]
    a, b, c = zip(*([draw(i, *shape, dtype=dtype) for i, shape in enumerate(three)] for three in shapes), strict=True)
    return list(a), list(b), list(c)


def _right(got: Array, a: Array, b: Array, c: Array | None = None, *, alpha: float = 1, beta: float = 0) -> bool:
    if got.dtype.kind in "iu":
        scaled = got.dtype.type(alpha) * (a @ b)
        return np.array_equal(got, scaled if c is None else scaled + got.dtype.type(beta) * c)
    return got.size == 0 or check(got, a, b, c=c, alpha=alpha, beta=beta).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_lists(dtype: str, on: Executor) -> None:
    a, b, c = lists(dtype)
    odd = [x if i % 2 else np.asfortranarray(x) for i, x in enumerate(a)]
    shifted = [np.pad(x, ((0, 0), (3, 2)))[:, 3:-2] for x in a]
    # Layouts matter to copies, which types of one size share.
    for left in (a, odd, shifted, [x[::-1] for x in a]) if dtype in {"float16", "float32"} else (odd,):
        assert all(map(_right, matmill.matmul(left, b, executor=on), left, b))
    results = matmill.matmul(a, tuple(map(np.asfortranarray, b)), c=c, alpha=2, beta=-1, executor=on)
    assert all(_right(*parts, alpha=2, beta=-1) for parts in zip(results, a, b, c, strict=True))
    nothing = matmill.matmul(a, b, c=c, alpha=0, beta=1, executor=on)
    assert all(map(np.array_equal, nothing, c))


def test_more_than_a_table_holds(on: Executor) -> None:
    sizes = [(int(m), 8, 16) for m in np.random.default_rng(0).integers(0, 5, 300)]
    for dtype in ("float16", "float32"):
        a, b, _ = lists(dtype, sizes)
        assert all(map(_right, matmill.matmul(a, b, executor=on), a, b))


def test_lists_that_are_computed_one_by_one(on: Executor) -> None:
    a, b, _ = lists("float32")
    mixed = [*a, a[0].astype(np.float64)], [*b, b[0].astype(np.float64)]
    assert all(map(_right, matmill.matmul(*mixed, executor=on), *mixed))
    vectors = [x[0] for x in a[:2]], b[:2]
    assert [x.shape for x in matmill.matmul(*vectors, executor=on)] == [(72,), (136,)]
    for got, x, y in zip(matmill.matmul(a[:2], b[:2], activation="relu", executor=on), a, b, strict=False):
        assert np.allclose(got, np.maximum(x.astype(np.float64) @ y, 0), rtol=1e-5, atol=1e-4)
    assert matmill.matmul([], [], executor=on) == []


def test_refusals_of_lists() -> None:
    a, b, c = lists("float32")
    with pytest.raises(DTypeError, match=r"a: got builtins\.list"):
        matmill.matmul(a, b[0])
    with pytest.raises(ArgumentError, match="c: got ndarray, with lists as a and b; wanted a list of 7 matrices"):
        matmill.matmul(a, b, c=c[0], beta=1)
    with pytest.raises(ShapeError, match="c: got 6 matrices; wanted as many as a has, 7"):
        matmill.matmul(a, b, c=c[1:], beta=1)
    with pytest.raises(ArgumentError, match="out: got an argument"):
        matmill.matmul(a, b, out=c)
    with pytest.raises(ArgumentError, match="c together with beta"):
        matmill.matmul(a, b, c=c)
    with pytest.raises(ShapeError, match="last dimension") as raised:
        matmill.matmul(a, [*b[:3], b[0], *b[4:]], executor="emulator")
    assert raised.value.__notes__ == ["This is product 3 of the lists."]
    with pytest.raises(DTypeError) as wrong:
        matmill.matmul([1.0, 2.0], b[:2])
    assert wrong.value.__notes__ == ["This is product 0 of the lists."]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("terms", [False, True])
def test_every_kernel_of_offsets(number: int, dtype: str, terms: bool) -> None:
    a, b, ends = operands("terms" if terms else "rows", (5, 0, 70, 130), 136, 72, dtype)
    (m, k), n = a.shape, b.shape[-1]
    a = np.asfortranarray(a) if terms else a
    whole = Gemm(m, n, k, ALL[dtype], batch=4, a_strides=(1, m) if terms else None, a_batch=0)
    whole = replace(whole, b_batch=0) if terms else replace(whole, d_batch=0)
    d = np.full((4, m, n) if terms else (m, n), np.nan, a.dtype)
    problem = Grouped(whole, 4, 1, terms)
    production = entries(problem)[number]
    legal = [
        one for one in production.space(problem, H200) if production.kernel.why_not_config(problem, one, H200) is None
    ]
    takes = {"float16": (True, True, False), "float64": (False, True, True)}  # wgmma, mma.sync, FMA
    assert bool(legal) == takes[dtype][number]
    for config in legal[:: max(1, len(legal) // 3)]:
        kernel, memory = production.kernel.with_config(config), Memory()
        d[...] = np.nan
        pointers = [memory.bind(name, x, access="r") for name, x in (("A", a), ("B", b), ("ends", ends))]
        to = memory.bind("D", d, access="w")
        bound = GemmOperands(pointers[0], pointers[1], Pointer("no C", 0), to, bias=pointers[2])
        report = run(compile_ptx(generate(kernel, ALL[dtype]), "sm_90a"), kernel.launch(problem, bound), memory)
        assert [str(one) for one in report.hazards if one.severity != "note"] == []
        verify("terms" if terms else "rows", a, b, d, ends)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("added", [False, True])
def test_every_kernel_of_lists(number: int, added: bool) -> None:
    a, b, c = lists("float16" if number < 2 else "float32")
    memory, rows, results = Memory(), [], [np.full(z.shape, np.nan, z.dtype) for z in c]

    def bound(x: Array) -> Operand:
        return inspect(x, "x", None, PRODUCTS)._replace(address=memory.bind("x", x, access="r").address)

    for x, y, z, d in zip(a, b, c, results, strict=True):
        rows.append(row(memory.bind("D", d, access="w").address, bound(x), bound(y), bound(z) if added else None))
    problem = listed(rows, ALL[a[0].dtype.name], read_c=added, skip=False)
    assert problem is not None
    production, nowhere = entries(problem)[number], Pointer("in the table", 16)
    legal = [
        one for one in production.space(problem, H200) if production.kernel.why_not_config(problem, one, H200) is None
    ]
    assert legal
    for config in legal[:: max(1, len(legal) // 3)]:
        kernel = production.kernel.with_config(config)
        launch = kernel.launch(problem, GemmOperands(nowhere, nowhere, nowhere, nowhere, 2.0, -1.0 if added else 0.0))
        report = run(compile_ptx(generate(kernel, problem.dtype), "sm_90a"), launch, memory)
        assert [str(one) for one in report.hazards if one.severity != "note"] == []
        for got, x, y, z in zip(results, a, b, c, strict=True):
            assert _right(got, x, y, z if added else None, alpha=2, beta=-1 if added else 0)
            got[...] = np.nan


def test_the_choice_on_hopper() -> None:
    rows = Grouped(Gemm(8192, 2048, 2048, F16, batch=64, a_batch=0, d_batch=0), 64)
    assert choose_from(entries(rows), rows, H200).kernel.entry == "grouped_wgmma"
    assert choose_from(entries(rows), rows, get("a100")).kernel.entry == "grouped_gemm"
    odd = replace(rows, whole=replace(rows.whole, k=2047, a_align=2))
    assert choose_from(entries(odd), odd, H200).kernel.entry == "grouped_gemm"
