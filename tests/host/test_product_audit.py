"""Audits of products (``matmill.testing.audit``): planted defects are found and named, right products are right."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.dtypes import ALL
from matmill.errors import UnknownNameError
from matmill.testing import audit
from matmill.testing.products import exact
from matmill.testing.products.order import NoOrderError, describe, order_of
from matmill.testing.products.subject import PLAIN, Form, Subject
from support.examples import examples
from support.summation import Node, as_tree, at_once, in_order

Array = Any


def in_float32(node: Node, products: Array) -> Array:
    """Return the sum of products by a tree of float32 additions; those of more than two addends drop what is small."""
    if isinstance(node, int):
        return products[..., node]
    assert node is not None
    parts = np.stack([in_float32(each, products) for each in node], -1).astype(np.float64)
    if parts.shape[-1] > 2:
        unit = np.exp2(np.floor(np.log2(np.abs(parts).max(-1, keepdims=True) + 1e-30)) - 24)
        parts = np.trunc(parts / unit) * unit
    return parts.sum(-1).astype(np.float32)


def by_tree(node: Node) -> Callable[[Array, Array], Array]:
    """Return a function of matrices that sums terms by a tree."""
    return lambda a, b: in_float32(node, a[:, None, :].astype(np.float32) * b.T[None].astype(np.float32))


@st.composite
def trees(draw: st.DrawFn, terms: tuple[int, ...]) -> Node:
    """Return a tree of some terms, in any order, in which up to five addends meet at once."""
    if len(terms) == 1:
        return terms[0]
    count = draw(st.integers(2, min(5, len(terms))))
    cuts = sorted(draw(st.permutations(range(1, len(terms))))[: count - 1])
    parts = [terms[first:last] for first, last in zip((0, *cuts), (*cuts, len(terms)), strict=True)]
    return tuple(draw(trees(part)) for part in parts)


@examples(60)
@given(st.data(), st.integers(2, 24), st.sampled_from([(7, 3), (2, 9)]))
def test_any_tree_is_recovered(data: st.DataObject, k: int, sides: tuple[int, int]) -> None:
    node = data.draw(trees(tuple(data.draw(st.permutations(range(k))))))
    subject = Subject(by_tree(node), "tree")
    assert order_of(subject, (*sides, k)) == as_tree(node)


def test_some_terms_of_a_tree_are_a_tree() -> None:
    node = in_order([at_once(range(first, first + 64), 16) for first in (0, 64, 128)])
    assert describe(order_of(Subject(by_tree(node), "tree"), (8, 3, 192), range(0, 192, 16))) == [
        "the sum of",
        "  0, 16, …, 48 one after the other",
        "  and 2 more like that, which begin with 64, 128",
    ]


def test_sums_without_a_tree() -> None:
    def rows_differ(a: Array, b: Array) -> Array:
        return np.concatenate([by_tree(in_order(range(9)))(a, b[:, :1]), by_tree(at_once(range(9), 9))(a, b[:, 1:])], 1)

    exactly = np.vectorize(Fraction, otypes=[object])
    wide = Subject(lambda a, b: (exactly(a) @ exactly(b)).astype(np.float32), "exact")
    with pytest.raises(NoOrderError, match="9 terms are below a node of 2"):
        order_of(wide, (4, 2, 9))
    with pytest.raises(NoOrderError, match="different orders"):
        order_of(Subject(rows_differ, "two orders"), (4, 2, 9))
    halves = Subject(lambda a, b: (a @ b).astype(a.dtype), "bfloat16", ALL["bfloat16"])
    with pytest.raises(NoOrderError, match="no room"):
        order_of(halves, (4, 2, 300))


def _lost(a: Array, b: Array) -> Array:
    k = a.shape[-1]
    return a[..., : k - 8] @ b[..., : k - 8, :] if k == exact.LONG[1] else a @ b


def _doubled(a: Array, b: Array) -> Array:
    return a @ b + (a[..., 3:4] @ b[..., 3:4, :] if a.shape[-2] % 16 == 5 else 0)


def _beyond(a: Array, b: Array) -> Array:
    base = np.lib.stride_tricks.as_strided(a, (a.shape[0], a.shape[1] + 1), a.strides)
    return base[:, :-1] @ b + 0 * base[:, -1:]


def _unwritten(a: Array, b: Array, *, out: Array = None) -> Array:
    if out is None:
        return a @ b
    out[:, :-1] = (a @ b)[:, :-1]
    return out


def _around(a: Array, b: Array, *, out: Array = None) -> Array:
    if out is None:
        return a @ b
    out[...] = a @ b
    np.lib.stride_tricks.as_strided(out, (out.size + 1,), out.strides[1:])[-1] = 1
    return out


def _reads_c(a: Array, b: Array, *, c: Array = None, beta: float = 0.0) -> Array:
    return a @ b if c is None else a @ b + beta * c


def _tf32(a: Array, b: Array) -> Array:
    a, b = (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000) for x in (a, b))
    return a.view(np.float32) @ b.view(np.float32)


DEFECTS = {
    "terms": (_lost, "8 x 8 x 11528: 49 of 64 elements, the first of them D[0, 1]: lost: 11520…11527 (of 0…11527)"),
    "terms, doubled": (
        _doubled,
        "37 x 45 x 77: 1665 of 1665 elements, the first of them D[0, 0]: 2 times: 3 (of 0…76)",
    ),
    "bounds": (_beyond, "is NaN: what surrounds the operands was read"),
    "written": (_unwritten, "33 x 41 x 65: D[0, 40] is left as it was"),
    "written, around": (_around, "33 x 41 x 65: 1 elements around D are written"),
    "beta": (_reads_c, "NaN of C is in D"),
    "special": (lambda a, b: np.nan_to_num(a) @ np.nan_to_num(b), "nan in A times 0: got"),
    "special, skips zeros": (lambda a, b: np.where(b.any(1), a, 0) @ b, "nan in A times 0: got"),
    "error": (_tf32, "k u |A| |B| of either sign"),
    "terms, few rows": (lambda a, b: a[:10] @ b, "33 x 41 x 65: the result's shape is (10, 41)"),
    "takes": (
        lambda a, b: np.matmul(a, b) if b.shape[1] != 46 else a @ a,
        "34 x 46 x 76: ValueError: matmul:",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_found_and_named(name: str) -> None:
    function, detail = DEFECTS[name]
    report = audit(function, name="planted")
    assert not report
    found = report.wrong[0]
    assert found.name == name.partition(",")[0]
    assert detail in found.detail
    assert detail in report.verdict
    assert "planted" in report.verdict


@pytest.mark.parametrize("dtype", ALL)
def test_products_by_float64_are_right(dtype: str) -> None:
    def product(a: Array, b: Array, *, out: Array = None, c: Array = None, beta: float = 0.0) -> Array:
        total = (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)
        if c is not None and beta:
            total = total + beta * c
        if out is None:
            return total
        out[...] = total
        return out

    report = audit(product, dtype=dtype)
    assert report.ok, report
    assert {report[name].verdict for name in ("grade", "twice", "subnormals", "overflow")} == {"yes"}


def test_strassen_is_no_grade_a() -> None:
    def strassen(a: Array, b: Array) -> Array:
        (m, k), n = a.shape, b.shape[1]
        if m % 2 or n % 2 or k % 2 or min(m, n, k) < 8:
            return a @ b
        (a, b, c, d), (e, f, g, h) = ([x for row in np.split(y, 2) for x in np.split(row, 2, axis=1)] for y in (a, b))
        p, q, r, s = (a + d) @ (e + h), (c + d) @ e, a @ (f - h), d @ (g - e)
        t, u, v = (a + b) @ h, (c - a) @ (e + f), (b - d) @ (g + h)
        return np.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])

    report = audit(strassen)
    assert [report[name].verdict for name in ("terms", "error", "grade")] == ["yes", "yes", "no"]


def test_bits_that_depend_on_other_rows_are_reported_and_may_be_required() -> None:
    def product(a: Array, b: Array) -> Array:
        kind = np.float64 if a.shape[0] > 8 else np.float32
        return (a.astype(kind) @ b.astype(kind)).astype(np.float32)

    report = audit(product)
    assert report.ok
    assert report["rows"].verdict == "no"
    assert "33 x 24 x 300, 1 rows alone" in report["rows"].detail
    assert not audit(product, require=["rows"])
    with pytest.raises(UnknownNameError, match="rows"):
        audit(product, require=["row"])


def test_sizes_have_every_remainder() -> None:
    sizes = list(exact.remainders())
    for side in range(3):
        assert {size[side] % 16 for size in sizes} == set(range(16))


def test_without_time_little_is_asked() -> None:
    report = audit(np.matmul, seconds=1e-9)
    assert {report[name].verdict for name in ("terms", "order", "twice")} == {"not asked"}


@pytest.mark.parametrize("form", [PLAIN, Form(columns=True), Form(start=1), Form(columns=True, start=3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operands_are_surrounded_by_nan(dtype: str, form: Form) -> None:
    values = np.arange(2 * 5 * 3.0).reshape(2, 5, 3)
    matrix, buffer = Subject(np.matmul, "", ALL[dtype]).in_buffer(values, form)
    assert (matrix == values).all()
    assert np.isfinite(buffer.astype(np.float32)).sum() == values.size
    first = matrix[0, 0].ctypes.data - buffer.ctypes.data
    assert first % 16 == form.start * matrix.itemsize
    assert (matrix.strides[-2] == matrix.itemsize) == form.columns


def test_reports_as_json_and_markdown() -> None:
    report = audit(_lost, name="lossy")
    document = report.as_dict()
    assert (document["ok"], document["dtype"], document["findings"][0]["name"]) == (False, "float32", "terms")
    assert report.markdown().startswith(f"**{report.verdict}**\n")
    assert "| has every term once | no | 8 x 8 x 11528" in report.markdown()
    assert str(report).splitlines()[0] == report.verdict
