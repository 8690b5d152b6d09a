"""Lowering: whatever the shapes and strides, the stages compute the product and touch each output once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from matmill.arrays import inspect
from matmill.errors import ShapeError
from matmill.lowering import MOST_BATCHES, SubProblem, gemm_shape, lower_gemm, split_batch
from matmill.problem import Gemm
from support.examples import examples

Array = NDArray[Any]


def _at(root: Array, first: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a view of ``root``'s memory, from ``offset`` bytes after ``first``'s start on; strides in elements."""
    flat = root.reshape(-1)
    start = (first.__array_interface__["data"][0] - flat.__array_interface__["data"][0] + offset) // flat.itemsize
    return as_strided(flat[start:], shape, tuple(s * flat.itemsize for s in strides))


def _interpret(stages: tuple[SubProblem[Gemm], ...], views: list[Array], roots: list[Array]) -> Array:
    """Run the stages as a kernel would, by address arithmetic alone; return how often each output was written."""
    a, b, c, d = views
    root_a, root_b, root_c, root_d = roots
    writes = np.zeros(root_d.size, int).reshape(root_d.shape)
    for stage in stages:
        p = stage.problem
        a_step, b_step, c_step, d_step = p.batch_strides
        for off_a, off_b, off_c, off_d in stage.offsets:
            x = _at(root_a, a, off_a, (p.batch, p.m, p.k), (a_step, *p.a_row_col)) if p.k else np.zeros((1, p.m, 0))
            y = _at(root_b, b, off_b, (p.batch, p.k, p.n), (b_step, *p.b_row_col)) if p.k else np.zeros((1, 0, p.n))
            product = x @ y
            if p.has_c:
                product = product + 0.5 * _at(root_c, c, off_c, (p.batch, p.m, p.n), (c_step, *p.c_row_col))
            _at(root_d, d, off_d, (p.batch, p.m, p.n), (d_step, *p.d_row_col))[...] = product
            start = d.__array_interface__["data"][0] - root_d.__array_interface__["data"][0]
            np.add.at(writes.reshape(-1), (start + off_d) // d.itemsize + _indices(p), 1)
    return writes


def _indices(p: Gemm) -> Array:
    i, r, s = np.ogrid[: p.batch, : p.m, : p.n]
    row, column = p.d_row_col
    indices: Array = i * p.batch_strides[3] + r * row + s * column
    return indices


@st.composite
def _array(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return a view of that shape with drawn order, steps and directions, and the packed root array it is cut from."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in shape]
    big = [shape[axis] * abs(steps[axis]) for axis in order]
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, big).astype(np.float64)
    root = np.ascontiguousarray(values)
    view = root[tuple(slice(None, None, steps[axis]) for axis in order)]
    return view.transpose(np.argsort(order)) if shape else view, root


_extent = st.integers(0, 4)


@st.composite
def _product(draw: st.DrawFn) -> tuple[list[Array], list[Array]]:
    m, n, k = draw(_extent), draw(_extent), draw(_extent)
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    shapes = []
    for tail in ((m, k), (k, n)):
        own = [1 if draw(st.booleans()) else extent for extent in batch]
        shapes.append((*own[draw(st.integers(0, len(own))) :], *tail))
    if draw(st.booleans()) and len(shapes[0]) == 2:
        shapes[0] = (k,)
    if draw(st.booleans()) and len(shapes[1]) == 2:
        shapes[1] = (k,)
    full = gemm_shape(*shapes)
    own = [1 if draw(st.booleans()) else extent for extent in full]
    shapes += [tuple(own[draw(st.integers(0, len(own))) :]), full]
    pairs = [draw(_array(shape)) for shape in shapes]
    return [view for view, _ in pairs], [root for _, root in pairs]


@examples(150)
@given(_product(), st.booleans(), st.booleans())
def test_stages_compute_the_product(drawn: tuple[list[Array], list[Array]], use_c: bool, skip: bool) -> None:
    (a, b, c, d), roots = drawn
    operands = [inspect(x, name) for x, name in ((a, "a"), (b, "b"), (c, "c"), (d, "d"))]
    stages = lower_gemm(operands[0], operands[1], operands[2] if use_c else None, operands[3], skip_product=skip)
    expected = np.matmul(a, b) * (0 if skip else 1) + (0.5 * c if use_c else 0)
    writes = _interpret(stages, [a, b, c, d], roots)
    np.testing.assert_array_equal(d, expected)
    assert writes.sum() == d.size
    assert writes.max(initial=0) <= 1


@examples(100)
@given(_product())
def test_alignment_divides_every_contiguous_line(drawn: tuple[list[Array], list[Array]]) -> None:
    (a, b, _, d), _roots = drawn
    x, y, z = inspect(a, "a"), inspect(b, "b"), inspect(d, "d")
    for stage in lower_gemm(x, y, None, z):
        p = stage.problem
        for off_a, _, _, off_d in stage.offsets:
            rows = {x.address + off_a + i * p.a_row_col[0] * 8 for i in range(p.m)}
            assert all(start % p.a_align == 0 for start in rows) or p.a_row_col[0] == 1
            rows = {z.address + off_d + i * p.d_row_col[0] * 8 for i in range(p.m)}
            assert all(start % p.d_align == 0 for start in rows) or p.d_row_col[0] == 1


def _stages(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[SubProblem[Gemm], ...]:
    x, y = np.zeros(a, np.float32), np.zeros(b, np.float32)
    d = np.zeros(gemm_shape(a, b), np.float32)
    return lower_gemm(inspect(x, "a"), inspect(y, "b"), None, inspect(d, "out"))


def test_packed_batches_are_one_launch() -> None:
    (stage,) = _stages((2, 3, 4, 5), (2, 3, 5, 6))
    assert (stage.problem.batch, stage.problem.m, len(stage.offsets)) == (6, 4, 1)


def test_batches_that_share_b_become_one_tall_product() -> None:
    (stage,) = _stages((2, 3, 4, 5), (5, 6))
    assert (stage.problem.batch, stage.problem.m, stage.offsets.only_origin) == (1, 24, True)


def test_broadcast_along_different_axes_loops_over_the_shorter() -> None:
    (stage,) = _stages((2, 1, 4, 5), (7, 5, 6))
    assert (stage.problem.batch, len(stage.offsets), stage.problem.batch_strides[:2]) == (7, 2, (0, 30))


def test_long_batches_are_cut_where_the_grid_ends() -> None:
    (whole,) = _stages((MOST_BATCHES + 3, 1, 1), (MOST_BATCHES + 3, 1, 1))
    assert whole.problem.batch == MOST_BATCHES + 3
    first, rest = split_batch(whole)
    assert (first.problem.batch, rest.problem.batch) == (MOST_BATCHES, 3)
    assert tuple(rest.offsets) == ((MOST_BATCHES * 4, MOST_BATCHES * 4, 0, MOST_BATCHES * 4),)


def test_empty_results_need_no_stage() -> None:
    assert _stages((0, 3), (3, 4)) == ()
    assert _stages((0, 2, 3), (3, 4)) == ()


def test_an_empty_sum_is_a_stage() -> None:
    (stage,) = _stages((2, 0), (0, 4))
    assert stage.problem.k == 0


@pytest.mark.parametrize(
    ("a", "b", "argument"), [((), (3,), "a"), ((3,), (), "b"), ((2, 3), (4, 5), "a, b"), ((2, 1, 1), (3, 1, 1), "a, b")]
)
def test_shapes_that_do_not_fit(a: tuple[int, ...], b: tuple[int, ...], argument: str) -> None:
    with pytest.raises(ShapeError) as raised:
        gemm_shape(a, b)
    assert raised.value.argument == argument


def test_narrow_products_of_a_long_k_stay_narrow() -> None:
    (three,) = _stages((3, 50, 5000), (5000, 4))
    assert (three.problem.batch, three.problem.m) == (3, 50)
    (two,) = _stages((2, 50, 5000), (5000, 4))
    assert (two.problem.batch, two.problem.m) == (1, 100)
    (short,) = _stages((3, 50, 100), (100, 4))
    assert (short.problem.batch, short.problem.m) == (1, 150)


def _lowered(a: Array, b: Array) -> tuple[SubProblem[Gemm], ...]:
    d = np.zeros(gemm_shape(a.shape, b.shape), a.dtype)
    return lower_gemm(inspect(a, "a"), inspect(b, "b"), None, inspect(d, "out"))


_E = np.zeros((6, 40), np.float32)
_BATCH = np.zeros((3, 6, 40), np.float32)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (_E, _E.T),
        (_E[::-1, ::2], _E[::-1, ::2].T),
        (_E[:1], _E[:1].T),
        (_E[:, :1], _E[:, :1].T),
        (_E[0], _E[0]),
        (_BATCH, _BATCH.transpose(0, 2, 1)),
        (np.broadcast_to(_E, (3, 6, 40)), np.broadcast_to(_E, (3, 6, 40)).transpose(0, 2, 1)),
    ],
)
def test_a_transpose_in_the_same_memory_is_seen(a: Array, b: Array) -> None:
    for stage in _lowered(a, b):
        plain = replace(stage.problem, gram=False, b_strides=stage.problem.b_row_col)
        assert stage.problem.gram
        assert stage.problem.b_strides is None
        assert stage.problem.b_align == stage.problem.a_align
        assert stage.problem.batch_strides == plain.batch_strides
        assert all(offsets[0] == offsets[1] for offsets in stage.offsets)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (_E, _E.copy().T),
        (_E, _E[::-1].T),
        (_E[:, :6], _E[:, :6]),
        (_E[:, 1:], _E[:, :-1].T),
        (_E, _E[:5].T),
        (_BATCH, _BATCH[0].T),
        (_BATCH[:2], _BATCH[::2].transpose(0, 2, 1)),
    ],
)
def test_other_views_of_the_same_memory_are_two_inputs(a: Array, b: Array) -> None:
    assert not any(stage.problem.gram for stage in _lowered(a, b))


def test_nothing_is_shared_where_nothing_is_read() -> None:
    d = inspect(np.zeros((6, 6), np.float32), "out")
    (stage,) = lower_gemm(inspect(_E, "a"), inspect(_E.T, "b"), None, d, skip_product=True)
    assert (stage.problem.k, stage.problem.gram) == (0, False)


def test_first_elements_may_be_better_aligned_than_lines() -> None:
    pool = np.zeros(4096, np.float32)
    skip = -pool.ctypes.data % 16 // 4
    b = pool[skip : skip + 35].reshape(7, 5)
    (stage,) = _lowered(np.zeros((3, 7), np.float32), b)
    assert (stage.problem.b_align, stage.problem.b_start_align) == (4, 16)
    (stage,) = _lowered(b.T, np.zeros((7, 2), np.float32))
    assert stage.problem.a_start_align == 16
    (stage,) = _lowered(np.zeros((2, 3, 7), np.float32), pool[skip : skip + 70].reshape(2, 7, 5))
    assert stage.problem.b_start_align == 4  # the second product's matrix starts 35 elements further on


def test_rows_of_a_batch_are_as_aligned_as_its_products() -> None:
    # Rows start on 16 bytes within a product. Products 65 elements apart do not.
    for apart, aligned in ((68, 16), (65, 4)):
        pool = np.zeros(4096, np.float32)
        skip = -pool.ctypes.data % 16 // 4
        a = as_strided(pool[skip:], (3, 4, 16), (apart * 4, 64, 4))
        (stage,) = _lowered(a, np.zeros((3, 16, 5), np.float32))
        assert stage.problem.a_align == aligned


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("shape", "expected"), [((30, 100, 8), (1, 3000)), ((25, 1, 8), (1, 25))])
def test_batches_with_one_second_matrix_are_tall_products(
    dtype: str, shape: tuple[int, ...], expected: tuple[int, int]
) -> None:
    (stage,) = _lowered(np.zeros(shape, dtype), np.zeros((8, 5), dtype))
    assert (stage.problem.batch, stage.problem.m) == expected


def test_a_batch_whose_c_is_apart_is_no_tall_product() -> None:
    a, b, d = np.zeros((30, 100, 8), np.float32), np.zeros((8, 5), np.float32), np.zeros((30, 100, 5), np.float32)
    for c, batch in ((d.copy(), 1), (np.zeros((30, 101, 5), np.float32)[:, :100], 30), (d[:1].copy(), 30)):
        added = inspect(np.broadcast_to(c, d.shape), "c")
        (stage,) = lower_gemm(inspect(a, "a"), inspect(b, "b"), added, inspect(d, "out"))
        assert stage.problem.batch == batch
