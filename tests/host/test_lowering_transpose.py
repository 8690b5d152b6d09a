"""Lowering of transpose+add: whatever the layout, each output is computed once, and views say what is true."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from matmill.arrays import Operand, inspect
from matmill.dtypes import BITS, F32
from matmill.errors import ShapeError
from matmill.lowering import MOST_BATCHES, SubProblem, lower_transpose, transpose_shape
from matmill.problem import Geam, View
from support.examples import examples

Array = NDArray[Any]
ALIGN = 16


@dataclass
class Case:
    """X, Y and D with the whole pieces of memory that they are views of."""

    x: Array
    y: Array
    d: Array
    roots: tuple[Array, Array, Array]

    def stages(self, *, with_y: bool = True, alpha: float | None = None) -> tuple[SubProblem[Geam], ...]:
        """Return what the case becomes."""
        y = inspect(self.y, "y") if with_y else None
        return lower_transpose(inspect(self.x, "x"), y, inspect(self.d, "out"), alpha=alpha)


@st.composite
def _view(draw: st.DrawFn, shape: tuple[int, ...], kind: Any) -> tuple[Array, Array]:
    """Return a view of that shape with drawn order, steps, directions, gaps and start, and its memory."""
    order = draw(st.permutations(range(len(shape))))
    if draw(st.booleans()):
        order = sorted(order)
    steps = [draw(st.sampled_from([1, 1, 1, 1, 2, -1])) for _ in shape]
    gaps = [draw(st.sampled_from([0, 0, 0, 1, 4])) for _ in shape]
    big = [shape[axis] * abs(steps[axis]) + gaps[axis] for axis in order]
    before = draw(st.sampled_from([0, 0, 1, 3, 4, 8]))
    memory = np.random.default_rng(draw(st.integers(0, 99))).integers(-40, 40, before + prod(big)).astype(kind)
    root = memory[before:].reshape(big)
    root = root[tuple(slice(0, shape[axis] * abs(steps[axis])) for axis in order)]
    view = root[tuple(slice(None, None, steps[axis]) for axis in order)]
    return view.transpose(np.argsort(order)), memory


@st.composite
def _case(draw: st.DrawFn) -> Case:
    r, c = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    kind: Any = draw(st.sampled_from([np.int8, np.float16, np.float32, np.float64]))
    shapes: list[tuple[int, ...]] = []
    for tail in ((c, r), (r, c)):
        own = [1 if draw(st.booleans()) else extent for extent in batch]
        shapes.append((*own[draw(st.integers(0, len(own))) :], *tail))
    shapes.append(transpose_shape(*shapes))
    (x, x_root), (y, y_root), (d, d_root) = (draw(_view(shape, kind)) for shape in shapes)
    return Case(x, y, d, (x_root, y_root, d_root))


def _at(array: Array, root: Array, offset: int, view: View, problem: Geam) -> Array:
    """Return the matrices that a view means, ``offset`` bytes from the start of ``array``."""
    start = array.__array_interface__["data"][0] + offset - root.__array_interface__["data"][0]
    assert start % root.itemsize == 0
    strides = tuple(stride * root.itemsize for stride in (view.batch, *view.strides))
    return as_strided(root[start // root.itemsize :], (problem.batch, problem.m, problem.n), strides)


@examples(300)
@given(_case(), st.booleans())
def test_stages_compute_the_sum_and_write_each_element_once(case: Case, with_y: bool) -> None:
    expected = np.swapaxes(case.x, -1, -2) + (3 * case.y if with_y else np.zeros_like(case.d))
    writes = np.zeros(case.roots[2].size, int)
    for stage in case.stages(with_y=with_y):
        p = stage.problem
        assert not p.plain
        assert 1 <= p.batch <= MOST_BATCHES
        for off_x, off_y, _, off_d in stage.offsets:
            total = _at(case.x, case.roots[0], off_x, p.x, p)
            if p.y is not None:
                total = total + 3 * _at(case.y, case.roots[1], off_y, p.y, p)
            _at(case.d, case.roots[2], off_d, p.d, p)[...] = total
            start = case.d.__array_interface__["data"][0] + off_d - case.roots[2].ctypes.data
            batch, row, column = np.ogrid[: p.batch, : p.m, : p.n]
            where = start // case.d.itemsize + batch * p.d.batch + row * p.d.strides[0] + column * p.d.strides[1]
            np.add.at(writes, where, 1)
    np.testing.assert_array_equal(case.d, expected)
    assert writes.sum() == case.d.size
    assert writes.max(initial=0) <= 1


@examples(300)
@given(_case(), st.booleans())
def test_views_say_what_divides_every_line_and_every_distance(case: Case, with_y: bool) -> None:
    operands = [inspect(case.x, "x"), inspect(case.y, "y"), inspect(case.d, "out")]
    for stage in case.stages(with_y=with_y):
        p = stage.problem
        assert not p.d.transposed
        places = np.ix_(range(p.batch), range(p.m), range(p.n))
        for off_x, off_y, _, off_d in stage.offsets:
            to = _addresses(operands[2], off_d, p.d, places)
            for operand, offset, view in zip(operands, (off_x, off_y, off_d), (p.x, p.y, p.d), strict=True):
                if view is not None:
                    at = _addresses(operand, offset, view, places)
                    assert not ((at[:, 0, :] if view.transposed else at[:, :, 0]) % view.align).any()
                    assert not ((at - to) % view.relative_align).any()
                    assert view.align <= ALIGN >= view.relative_align


def _addresses(operand: Operand, offset: int, view: View, places: tuple[Array, ...]) -> Array:
    batch, row, column = places
    elements = batch * view.batch + row * view.strides[0] + column * view.strides[1]
    result: Array = operand.address + offset + elements * operand.dtype.itemsize
    return result


def _aligned(*shape: int, kind: Any = np.float32, skip: int = 0) -> Array:
    """Return zeros that start ``skip`` elements after a multiple of 16 bytes."""
    memory = np.zeros(prod(shape) + skip + ALIGN, kind)
    first = -memory.ctypes.data % ALIGN // memory.itemsize + skip
    return memory[first : first + prod(shape)].reshape(shape)


def _stages(
    x: Array, y: Array | None, d: Array | None = None, alpha: float | None = None
) -> tuple[SubProblem[Geam], ...]:
    shape = transpose_shape(x.shape, None if y is None else y.shape)
    d = _aligned(*shape, kind=x.dtype) if d is None else d
    return lower_transpose(inspect(x, "x"), None if y is None else inspect(y, "y"), inspect(d, "out"), alpha=alpha)


def test_alignment_is_not_less_than_it_is() -> None:
    (stage,) = _stages(_aligned(8, 12), _aligned(12, 8))
    p = stage.problem
    assert p == Geam(12, 8, F32, View((1, 12), relative_align=4), View((8, 1)), View((8, 1)))
    (stage,) = _stages(_aligned(9, 12), _aligned(12, 9, skip=1))
    p = stage.problem
    assert (p.x.align, p.d.align, p.y and p.y.align, p.y and p.y.relative_align) == (16, 4, 4, 4)
    (stage,) = _stages(_aligned(9, 12), _aligned(12, 9))
    assert stage.problem.y == View((9, 1), 0, 4, 16)  # rows start anywhere, but as far from those of D as ever


@pytest.mark.parametrize(("alpha", "plain"), [(1, True), (2, False), (None, False)])
def test_a_transpose_alone_moves_bits(alpha: float | None, plain: bool) -> None:
    for kind in (np.int8, np.float16, np.float32, np.float64):
        (stage,) = _stages(_aligned(8, 12, kind=kind), None, alpha=alpha)
        assert (stage.problem.plain, stage.problem.y) == (plain, None)
        assert (stage.problem.dtype is BITS[np.dtype(kind).itemsize]) == (plain or kind is np.int8)


def test_nothing_is_read_where_both_scalars_are_0() -> None:
    (stage,) = _stages(_aligned(8, 12), None, alpha=0)
    p = stage.problem
    assert (p.x.strides, p.x.batch, p.dtype, p.plain, p.m * p.n) == ((0, 0), 0, BITS[4], False, 96)


def test_packed_batches_are_one_launch_and_those_that_lie_alike_one_matrix() -> None:
    (stage,) = _stages(_aligned(2, 3, 4, 5), _aligned(2, 3, 5, 4))
    assert (stage.problem.batch, stage.problem.m, stage.problem.n, len(stage.offsets)) == (6, 5, 4, 1)
    (stage,) = _stages(_aligned(3, 5, 8)[:, :, :4].swapaxes(1, 2), _aligned(3, 5, 4))
    assert (stage.problem.batch, stage.problem.m, stage.problem.n) == (1, 15, 4)
    (stage,) = _stages(_aligned(7, 1, 5), _aligned(7, 5, 1))
    assert (stage.problem.batch, stage.problem.m, stage.problem.n) == (1, 1, 35)


def test_a_result_in_columns_is_the_other_result_in_rows() -> None:
    d = _aligned(3, 8, 12).swapaxes(1, 2)
    (stage,) = _stages(_aligned(3, 8, 12), _aligned(3, 12, 8), d)
    p = stage.problem
    assert (p.m, p.n, p.d.strides, p.x.strides, p.y and p.y.strides) == (8, 12, (12, 1), (12, 1), (1, 8))


def test_broadcast_along_different_axes_loops_over_the_shorter() -> None:
    (stage,) = _stages(_aligned(2, 1, 4, 5), _aligned(7, 5, 4))
    p = stage.problem
    assert (p.batch, p.x.batch, p.y and p.y.batch, p.d.batch) == (7, 0, 20, 20)
    assert tuple(stage.offsets) == ((0, 0, 0, 0), (20 * 4, 0, 0, 7 * 20 * 4))


def test_long_batches_are_cut_where_the_grid_ends() -> None:
    extent = MOST_BATCHES + 3
    x, y = np.zeros((extent, 2, 4), np.int8)[..., :3], np.zeros((extent, 3, 2), np.int8)
    first, rest = _stages(x, y)
    assert (first.problem.batch, rest.problem.batch) == (MOST_BATCHES, 3)
    assert tuple(rest.offsets) == ((MOST_BATCHES * 8, MOST_BATCHES * 6, 0, MOST_BATCHES * 6),)
    # Many small packed matrices are one stage: their kernel has them along the grid's first dimension.
    (whole,) = _stages(np.ascontiguousarray(x), y)
    assert whole.problem.batch == extent


def test_rows_and_columns_are_cut_where_32_bits_end() -> None:
    long = 2**30 + 5
    shape = (2, long)
    d = Operand(shape, (2**32, 3), F32, ("cuda", 0), 1 << 20, readonly=False, library="torch", owner=None)
    x = d._replace(shape=shape[::-1], strides=(1, 2**31))
    stages = lower_transpose(x, d, d)
    assert [(s.problem.m, s.problem.n, tuple(s.offsets)) for s in stages] == [
        (2, 2**30, ((0, 0, 0, 0),)),
        (2, 5, ((2**32, 3 * 2**32, 0, 3 * 2**32),)),
    ]
    (stage,) = lower_transpose(x, None, d._replace(strides=(2**32, 3)), alpha=1)[:1]
    assert stage.problem.n == 2**30


def test_a_long_vector_is_folded_into_rows() -> None:
    n = 1024 * 128 + 7
    first, rest = _stages(np.zeros((n, 1), np.float32), np.zeros((1, n), np.float32))
    assert (first.problem.m, first.problem.n, first.problem.d.strides) == (128, 1024, (1024, 1))
    assert (rest.problem.m, rest.problem.n, tuple(rest.offsets)) == (
        1,
        7,
        ((1024 * 128 * 4, 1024 * 128 * 4, 0, 1024 * 128 * 4),),
    )
    d = np.zeros(n, np.float32)
    x = np.arange(n, dtype=np.float32)
    root = x.copy()
    y = root[::-1]
    for stage in _stages(x[:, None], y[None], d[None]):
        for off_x, off_y, _, off_d in stage.offsets:
            p = stage.problem
            assert p.y is not None
            total = _at(x, x, off_x, p.x, p) + _at(y, root, off_y, p.y, p)
            _at(d, d, off_d, p.d, p)[...] = total
    assert (d == n - 1).all()


def test_empty_results_need_no_stage() -> None:
    assert _stages(np.zeros((0, 3), np.int8), np.zeros((3, 0), np.int8)) == ()
    assert _stages(np.zeros((0, 2, 3), np.int8), None) == ()


@pytest.mark.parametrize(
    ("x", "y", "argument", "words"),
    [
        ((3,), (3, 3), "x", "at least two dimensions (..., c, r)"),
        ((), None, "x", "got shape ()"),
        ((3, 3), (3,), "y", "at least two dimensions (..., r, c)"),
        ((2, 3), (2, 3), "x, y", "swapped: (3, 2)"),
        ((2, 3), (3, 1), "x, y", "swapped: (3, 2)"),
        ((4, 2, 3), (5, 3, 2), "x, y", "batch dimensions (4,) and (5,) that broadcast"),
    ],
)
def test_shapes_that_do_not_fit(x: tuple[int, ...], y: tuple[int, ...] | None, argument: str, words: str) -> None:
    with pytest.raises(ShapeError) as raised:
        transpose_shape(x, y)
    assert raised.value.argument == argument
    assert words in str(raised.value)
