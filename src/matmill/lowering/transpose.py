"""Shapes and strides of transpose-add to problems: D = alpha * X transposed + beta * Y, element by element.

All operands are indexed as D is, as arrays of D's shape. Dimensions with regular strides in all of them are merged. The
last two that remain are the rows and columns of matrices, exchanged where D's row stride is less than its column
stride.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import lcm
from typing import TypeAlias

from matmill.arrays import Operand
from matmill.dtypes import BITS
from matmill.errors import ShapeError
from matmill.lowering.axes import (
    MOST_BATCHES,
    NO_AXIS,
    Axis,
    Offsets,
    Shape,
    SubProblem,
    broadcast_batches,
    broadcast_strides,
    canonical,
    collapse,
    cut,
    grids,
    lowest_bit,
    total,
)
from matmill.problem import Geam, View

#: The largest alignment in bytes that problems distinguish.
_ALIGN = 16
#: The most rows or columns: kernels count them in 32 bits, and tiles exceed the end.
_LONGEST = 2**30
#: Long vectors are folded into this many columns if that yields as many rows as tiles have: a single row would leave
#: most of each tile empty. All rows start a multiple of 16 bytes after the first.
_FOLDED, _FOLDED_ROWS = 1024, 128
#: The least total of small matrices in vectors, and the most of them that grid.x can count.
_SMALL, _MOST_SMALL = 2048, 2**31 - 1

#: Rows, columns, and the offsets in elements where such a matrix starts.
_Part: TypeAlias = tuple[Axis, Axis, list[Offsets]]
_X, _Y, _D = 0, 1, 3


def many_small(problem: Geam) -> str | None:
    """Return why a problem does not consist of many small packed matrices with one operand transposed, or None.

    A block takes chunks of such matrices.
    """
    names, problem = ("YX" if problem.y_transposed else "XY"), problem.transposed_first
    m, n = problem.m, problem.n
    v = _ALIGN // problem.dtype.itemsize
    if problem.batch < 2 or lcm(m * n, v) // v > _SMALL:
        return f"{problem.batch} matrices of {m} x {n} are not many small ones"
    along = View((n, 1), m * n)
    views = (problem.x, (1, m)), (problem.y or along, (n, 1)), (problem.d, (n, 1))
    for name, (view, wanted) in zip((*names, "D"), views, strict=True):
        steps = zip(view.strides, wanted, (m, n), strict=True)
        # The stride of a dimension with extent 1 may be anything.
        if view.batch != m * n or not all(own == right or extent == 1 for own, right, extent in steps):
            return f"{name} with strides {view.strides} and {view.batch} between matrices is not packed"
    return None


@lru_cache(maxsize=1024)
def transpose_shape(x: Shape, y: Shape | None = None, names: tuple[str, str] = ("x", "y")) -> Shape:
    """Return the shape of ``x`` with its last two dimensions swapped, plus ``y``.

    Raises :class:`~matmill.errors.ShapeError`.

    ``names`` are the names of the two arrays in messages.

    >>> transpose_shape((3, 4)), transpose_shape((5, 1, 3, 4), (6, 4, 3))
    ((4, 3), (5, 6, 4, 3))
    """
    for name, shape, wanted in ((names[0], x, "(..., c, r)"), (names[1], y, "(..., r, c)")):
        if shape is not None and len(shape) < 2:
            raise ShapeError(
                argument=name,
                got=f"shape {tuple(shape)}",
                wanted=f"at least two dimensions {wanted}",
                fix="Insert a dimension of 1 where the vector has none.",
            )
    rows_columns = (x[-1], x[-2])
    if y is None:
        return (*x[:-2], *rows_columns)
    if tuple(y[-2:]) != rows_columns:
        raise ShapeError(
            argument=", ".join(names),
            got=f"shapes {tuple(x)} and {tuple(y)}",
            wanted=f"the last two dimensions of {names[1]} to be {names[0]}'s, swapped: {rows_columns}",
            fix=f"Transpose {names[1]} if it is stored as {names[0]} is.",
        )
    return (*broadcast_batches(x, y, names), *rows_columns)


def lower_transpose(
    x: Operand, y: Operand | None, d: Operand, *, alpha: complex | None = None, conjugates: str = ""
) -> tuple[SubProblem[Geam], ...]:
    """Return the stages that compute D = alpha * X transposed + beta * Y.

    ``conjugates`` names those of X and Y whose conjugates are meant, ``"a"`` and ``"b"``.

    ``d`` has the shape that :func:`transpose_shape` returns, ``y`` is None where beta is 0. Without ``y``, an ``alpha``
    of 1 moves bits, and an ``alpha`` of 0 sets D to 0: one real element of X is then read as an integer, because NaN
    times 0 would be NaN. An empty result has no stages.
    """
    if not all(d.shape):
        return ()
    rank = len(d.shape)
    zero = y is None and alpha == 0
    plain = y is None and alpha == 1 and not conjugates
    x_strides = (0,) * rank if zero else broadcast_strides(_swapped(x.shape), _swapped(x.strides), rank)
    y_strides = (0,) * rank if y is None else broadcast_strides(y.shape, y.strides, rank)
    strides = zip(d.shape, x_strides, y_strides, d.strides, strict=True)
    axes = collapse(Axis(extent, (of_x, of_y, 0, of_d)) for extent, of_x, of_y, of_d in strides)
    *batch, rows, columns = [NO_AXIS] * max(0, 2 - len(axes)) + axes
    if rows.extent > 1 and abs(rows.strides[_D]) < abs(columns.strides[_D]):
        rows, columns = columns, rows
        if batch:
            *batch, rows = collapse((*batch, rows))
    size = d.dtype.itemsize
    views = []
    for high, wide, starts in _parts(rows, columns):
        of_x, of_y, of_d = (
            _view(operand, which, d, (*batch, high, wide)) for which, operand in ((_X, x), (_Y, y), (_D, d))
        )
        one = Geam(
            m=high.extent,
            n=wide.extent,
            dtype=BITS[size] if plain or (zero and d.dtype.part is None) else d.dtype,
            x=replace(of_x, conjugate="a" in conjugates),
            y=None if y is None else replace(of_y, conjugate="b" in conjugates),
            d=of_d,
            plain=plain,
        )
        small = len(batch) == 1 and many_small(_batched(one, batch[0])) is None
        for axis, offsets in grids(
            batch, (size, size, size, size), starts, most=_MOST_SMALL if small else MOST_BATCHES
        ):
            views.append(SubProblem(_batched(one, axis), offsets))
    return tuple(views)


def _batched(problem: Geam, axis: Axis) -> Geam:
    """Return the problem repeated along ``axis``."""
    y = None if problem.y is None else replace(problem.y, batch=axis.strides[_Y])
    x, d = replace(problem.x, batch=axis.strides[_X]), replace(problem.d, batch=axis.strides[_D])
    return replace(problem, batch=axis.extent, x=x, y=y, d=d)


def _swapped(extents: Sequence[int]) -> tuple[int, ...]:
    return (*extents[:-2], extents[-1], extents[-2])


def _parts(rows: Axis, columns: Axis) -> Iterator[_Part]:
    """Yield the pieces of a matrix that a kernel takes, those of one size together."""
    pairs = [(rows, columns, NO_AXIS.strides)]
    if rows.extent == 1 and columns.extent >= _FOLDED * _FOLDED_ROWS:
        whole, rest = divmod(columns.extent, _FOLDED)
        folded = Axis(whole, columns.at(_FOLDED)), Axis(_FOLDED, columns.strides)
        pairs = [(*folded, NO_AXIS.strides), (rows, Axis(rest, columns.strides), columns.at(whole * _FOLDED))]
    for high, wide, first in pairs:
        for m, row_starts in cut(high.extent, _LONGEST):
            for n, column_starts in cut(wide.extent, _LONGEST):
                corners = product(row_starts, column_starts)
                starts = [total((first, high.at(row), wide.at(column))) for row, column in corners]
                yield Axis(m, high.strides), Axis(n, wide.strides), starts


def _view(operand: Operand | None, which: int, d: Operand, axes: Sequence[Axis]) -> View:
    """Return the layout of one operand: ``axes`` are those of the batch, rows and columns."""
    if operand is None:
        return View((0, 0))
    *batch, rows, columns = axes
    size = d.dtype.itemsize
    view = View(canonical((rows.strides[which], columns.strides[which]), rows.extent, columns.extent))
    across = (*batch, columns if view.transposed else rows)
    apart = (axis.strides[which] - axis.strides[_D] for axis in axes if axis.extent > 1)
    return replace(
        view,
        align=lowest_bit(operand.address | _ALIGN, (axis.strides[which] for axis in across if axis.extent > 1), size),
        relative_align=lowest_bit(abs(operand.address - d.address) | _ALIGN, apart, size),
    )
