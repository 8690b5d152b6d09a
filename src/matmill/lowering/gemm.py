"""Shapes and strides of matrix products to GEMM problems.

A product of any shape becomes a few sub-problems. Batch dimensions with regular strides in all operands collapse into
one, a batch whose second matrix is shared becomes taller matrices, and remaining dimensions are looped over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from matmill.arrays import Operand
from matmill.dtypes import summed
from matmill.errors import ShapeError
from matmill.invariant import slice_terms
from matmill.kernel import ceil_div
from matmill.lowering.axes import (
    MOST_BATCHES,
    NO_AXIS,
    Axis,
    Lattice,
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
from matmill.problem import Epilogue, Gemm, Strides

#: Products of at most this many rows and columns are narrow: `inner` takes only these.
NARROW = 128
#: k is long if it is this many times the longer side of a narrow result.
_LONG = 32
#: The most rows or columns: kernels count them in 32 bits, and tiles exceed the end. Longer ones are split.
_LONGEST = 2**30
#: Bytes of an operand that a kernel may have to repack: the copies of A and B together must fit in 4 GiB.
_MOST_REPACKED = 2**31
#: The least rows (or columns) of a piece that is split off so that repacking fits. Smaller pieces would cost more, as
#: each repacks both its operands. If only one kernel has the precision, pieces may be smaller.
_LEAST_PIECE, _LEAST_PIECE_OF_PRECISION = 2048, 64
#: Pieces are multiples of this many rows or columns, so that all have the alignment of the first.
_PIECE = 64


def is_long(problem: Gemm) -> bool:
    """Tell whether a product has few outputs and a long k, as the inner kernel needs.

    >>> is_long(Gemm(128, 3, 4096)), is_long(Gemm(128, 3, 4095)), is_long(Gemm(129, 3, 10**6))
    (True, False, False)
    """
    longer = max(problem.m, problem.n)
    return longer <= NARROW and problem.k >= _LONG * longer


@lru_cache(maxsize=1024)
def gemm_shape(a: Shape, b: Shape, names: tuple[str, str] = ("a", "b")) -> Shape:
    """Return the shape of ``a @ b`` by the array API's rules. Raises :class:`~matmill.errors.ShapeError`.

    ``names`` are the names of the two arrays in messages.

    >>> gemm_shape((5, 1, 2, 3), (4, 3, 6)), gemm_shape((3,), (3, 6)), gemm_shape((3,), (3,))
    ((5, 4, 2, 6), (6,), ())
    """
    first, second = names
    for name, shape in ((first, a), (second, b)):
        if not shape:
            raise ShapeError(
                argument=name,
                got="shape ()",
                wanted="at least one dimension",
                fix="Multiply by a scalar with `*`.",
            )
    inner, which = (b[-2], "second-last") if len(b) > 1 else (b[0], "only")
    if a[-1] != inner:
        raise ShapeError(
            argument=f"{first}, {second}",
            got=f"shapes {tuple(a)} and {tuple(b)}",
            wanted=f"the last dimension of {first} ({a[-1]}) to equal {second}'s {which} ({inner})",
            fix="Transpose one of them if it is stored the other way.",
        )
    batch = broadcast_batches(a, b, names)
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def gemm_epilogue(bias: Operand | None, activation: str | None, a: Shape, b: Shape) -> Epilogue:
    """Return the epilogue for a product of arrays of shapes ``a`` and ``b``.

    A bias of one element, whether by its shape or by its strides, is a row of stride 0. Raises
    :class:`~matmill.errors.ShapeError` for a bias that is neither a row nor a column of the product.
    """
    if bias is None:
        return Epilogue(activation=activation)
    m, n = a[-2] if len(a) > 1 else 1, b[-1] if len(b) > 1 else 1
    rows, columns = ((m,), (m, 1)), ((n,), (1, n))
    shape = tuple(bias.shape)
    if len(b) > 1 and shape in columns:
        kind, extent, stride = "row", n, bias.strides[-1]
    elif shape == rows[1] or (len(b) == 1 and shape == rows[0]):
        kind, extent, stride = "column", m, bias.strides[0]
    else:
        raise _wrong_bias(shape, m, n, vector=len(b) == 1)
    stride = 0 if extent == 1 else stride
    return Epilogue("row" if stride == 0 else kind, stride, activation)


def _wrong_bias(shape: Shape, m: int, n: int, *, vector: bool) -> ShapeError:
    row = f"({m},)" if vector else f"({n},) or (1, {n}), an element for each column,"
    count = prod(shape)
    if count == n and not vector:
        fix = "Pass bias.reshape(-1)."
    elif count == m:
        fix = "It has an element for each row: pass bias.reshape(-1, 1)."
    else:
        fix = "Pass an addend of another shape as c=, with beta=1."
    wanted = f"{row} or ({m}, 1), an element for each row"
    return ShapeError(argument="bias", got=f"shape {shape}", wanted=wanted, fix=fix)


def lower_gemm(
    a: Operand,
    b: Operand,
    c: Operand | None,
    d: Operand,
    *,
    skip_product: bool = False,
    bias: Operand | None = None,
    activation: str | None = None,
    precision: str = "default",
    batch_invariant: bool = False,
    taller: bool = True,
) -> tuple[SubProblem[Gemm], ...]:
    """Return the problems that compute D = activation(alpha * A @ B + beta * C + bias).

    ``d`` has the shape that :func:`gemm_shape` returns, ``c`` is None where beta is 0. ``skip_product`` (alpha = 0)
    makes the inner dimension 0, so that A and B are not read. An empty result has no problems. C and D may be wider
    than A and B. Without ``taller`` products of a batch stay apart where they share B.

    If B is A's transpose in the same memory, the problems have ``Gemm.gram`` and B's offsets are A's.
    """
    m = a.shape[-2] if len(a.shape) > 1 else 1
    n = b.shape[-1] if len(b.shape) > 1 else 1
    k = 0 if skip_product else a.shape[-1]
    if not all(d.shape):
        return ()
    batch = d.shape[: len(d.shape) - (len(a.shape) > 1) - (len(b.shape) > 1)]
    a_outer, a_strides = _split(a, batch, 1 if len(a.shape) == 1 else None)
    b_outer, b_strides = _split(b, batch, 0 if len(b.shape) == 1 else None)
    d_outer, d_strides = _result_strides(d, a, b, d.shape)
    c_outer, c_strides = _result_strides(c, a, b, d.shape) if c is not None else ((0,) * len(batch), (0, 0))
    outer = zip(a_outer, b_outer, c_outer, d_outer, strict=True)
    axes = collapse([Axis(extent, strides) for extent, strides in zip(batch, outer, strict=True)])
    problem = Gemm(
        m=m,
        n=n,
        k=k,
        dtype=summed(a.dtype, d.dtype),
        a_strides=canonical(a_strides, m, k),
        b_strides=canonical(b_strides, k, n),
        c_strides=canonical(c_strides, m, n) if c is not None else None,
        d_strides=canonical(d_strides, m, n),
        has_c=c is not None,
        epilogue=gemm_epilogue(bias, activation, a.shape, b.shape),
        out_dtype=None if d.dtype is a.dtype else d.dtype,
        precision=precision,
        slice_k=slice_terms(n, k, summed(a.dtype, d.dtype), precision) if batch_invariant else 0,
    )
    if taller:
        problem, axes = _taller(problem, axes)
    starts = [operand.address | 16 for operand in (a, b, d)]
    a_align, b_align, d_align = alignments(problem, axes, starts)
    a_start, b_start = (
        lowest_bit(start, (axis.strides[which] for axis in axes), problem.dtype.itemsize)
        for which, start in enumerate(starts[:2])
    )
    known = replace(
        problem, a_align=a_align, b_align=b_align, d_align=d_align, a_start_align=a_start, b_start_align=b_start
    )
    if a.address == b.address and _mirrored(problem, axes):
        known = replace(known, gram=True, b_strides=None, b_align=a_align)
    first = starts[0] | starts[1] | starts[2]
    size, wide = problem.dtype.itemsize, problem.d_dtype.itemsize
    pieces = []
    for piece, corners, batches in _pieces(known):
        for axis, offsets in grids(axes, (size, size, wide, wide), corners, most=batches):
            a_batch, b_batch, c_batch, d_batch = axis.strides
            moved = (offset for a_to, b_to, _, d_to in offsets.steps for offset in (a_to, b_to, d_to))
            whole = replace(
                piece,
                batch=axis.extent,
                a_batch=a_batch,
                b_batch=b_batch,
                c_batch=c_batch,
                d_batch=d_batch,
                base_align=lowest_bit(first, moved, 1),
            )
            pieces.append(SubProblem(whole, offsets))
    return tuple(pieces)


def _pieces(problem: Gemm) -> Iterator[tuple[Gemm, list[Offsets], int]]:
    """Split rows and columns that exceed a kernel's 32-bit counts, or whose operand is too large to be repacked.

    Yields a piece, the offsets in elements where such pieces start, and how many products of a batch may be computed at
    once, which is all of them unless an operand may be repacked. A Gram matrix is not split, nor is an extent along
    which a bias has one element per row or column.
    """
    (a_row, a_column), (b_row, b_column) = problem.a_row_col, problem.b_row_col
    (c_row, c_column), (d_row, d_column) = problem.c_row_col, problem.d_row_col
    run = ceil_div(problem.k * problem.dtype.itemsize, 64) * 64
    least = _LEAST_PIECE if problem.precision == "default" else _LEAST_PIECE_OF_PRECISION
    lengths, batches = [], _LONGEST
    for extent, align, strides, kind in (
        (problem.m, problem.a_align, (a_column, a_row), "column"),
        (problem.n, problem.b_align, (b_row, b_column), "row"),
    ):
        most = _LONGEST
        if run and _may_be_repacked(problem, align, strides):
            most = min(most, max(least, _MOST_REPACKED // run))
            batches = min(batches, _whole_sixteens(max(1, _MOST_REPACKED // (run * min(extent, most)))))
        whole = problem.gram or problem.epilogue.bias == kind or extent <= most
        # Pieces have about equal lengths.
        lengths.append(extent if whole else ceil_div(ceil_div(extent, ceil_div(extent, most)), _PIECE) * _PIECE)
    for m, rows in cut(problem.m, lengths[0]):
        for n, columns in cut(problem.n, lengths[1]):
            corners = [(i * a_row, j * b_column, i * c_row + j * c_column, i * d_row + j * d_column)
                       for i in rows for j in columns]  # fmt: skip
            yield replace(problem, m=m, n=n), corners, batches


def split_batch(stage: SubProblem[Gemm]) -> Iterator[SubProblem[Gemm]]:
    """Split a batch into runs that fit in a grid's second dimension."""
    problem, offsets = stage.problem, stage.offsets
    sizes = (problem.dtype.itemsize,) * 2 + (problem.d_dtype.itemsize,) * 2
    axis = Axis(problem.batch, total([problem.batch_strides], sizes))
    for batch, numbers in cut(problem.batch, MOST_BATCHES):
        start, step = axis.at(numbers.start), axis.at(numbers.step)
        firsts = tuple(total((first, start)) for first in offsets.firsts)
        runs = (Axis(len(numbers), step),) if len(numbers) > 1 else ()
        moved = (to for steps in ((start, step) if runs else (start,)) for to in (*steps[:2], steps[3]))
        align = lowest_bit(problem.base_align or 1, moved, 1)
        a, b, c, d = problem.batch_strides if batch > 1 else NO_AXIS.strides
        run = replace(problem, batch=batch, a_batch=a, b_batch=b, c_batch=c, d_batch=d, base_align=align)
        yield replace(stage, problem=run, offsets=Lattice(firsts, (*offsets.axes, *runs)))


def _whole_sixteens(count: int) -> int:
    """Round down to a multiple of 16, which keeps the operands' alignment; below 16, to 1, 2, 4 or 8."""
    return count // 16 * 16 or 1 << (count.bit_length() - 1)


def _may_be_repacked(problem: Gemm, align: int, strides: Strides) -> bool:
    """Tell whether tensor cores need a copy of an operand: one off 16 bytes, or not contiguous along k.

    Two strides along and across k are as good as one for 16-bit elements, not for tf32 and bytes.

    ``strides`` are those along k and across it.
    """
    along_k, across = strides
    if problem.precision == "tf32":
        return align < 16 or along_k != 1 or across == 1
    if problem.dtype.itemsize == 1:
        return align < 16 or along_k != 1 or problem.k % 16 != 0
    return problem.dtype.itemsize == 2 and (align < 16 or 1 not in {along_k, across})


def _split(x: Operand, batch: Shape, missing: int | None) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the batch strides and the (row, column) strides of an input.

    ``missing`` is the position at which a vector lacks an axis.
    """
    strides = tuple(x.strides)
    if missing is not None:
        row, column = (0, strides[0]) if missing else (strides[0], 0)
        return (0,) * len(batch), (row, column)
    return broadcast_strides(x.shape[:-2], strides[:-2], len(batch)), (strides[-2], strides[-1])


def _result_strides(x: Operand, a: Operand, b: Operand, shape: Shape) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the batch strides and the (row, column) strides of C or D, whose vector axes the array API drops."""
    strides = list(broadcast_strides(x.shape, x.strides, len(shape)))
    column = strides.pop() if len(b.shape) > 1 else 0
    row = strides.pop() if len(a.shape) > 1 else 0
    return tuple(strides), (row, column)


def _taller(problem: Gemm, axes: list[Axis]) -> tuple[Gemm, list[Axis]]:
    """Merge the last batch axis into the rows if B is shared: one tall product fills the GPU better than many.

    Products with a long k stay narrow: the kernel for them reads B once per product and is still many times faster. A
    bias with one element per row is the same for every product of a batch.
    """
    if not axes or problem.epilogue.bias == "column":
        return problem, axes
    extent, (a, b, c, d) = axes[-1]
    m = problem.m
    regular = m == 1 or (
        a == m * problem.a_row_col[0]
        and d == m * problem.d_row_col[0]
        and (not problem.has_c or c == m * problem.c_row_col[0])
    )
    if b != 0 or not regular or (is_long(problem) and m * extent > NARROW):
        return problem, axes
    if m == 1:
        problem = replace(
            problem,
            a_strides=(a, problem.a_row_col[1]),
            c_strides=(c, problem.c_row_col[1]) if problem.has_c else None,
            d_strides=(d, problem.d_row_col[1]),
        )
    return replace(problem, m=m * extent), axes[:-1]


def _mirrored(problem: Gemm, axes: list[Axis]) -> bool:
    """Tell whether B starts at A's address and is A's transpose in every product of the batch."""
    (a_row, a_column), (b_row, b_column) = problem.a_row_col, problem.b_row_col
    return (
        problem.m == problem.n
        and problem.k > 0
        and (problem.m == 1 or a_row == b_column)
        and (problem.k == 1 or a_column == b_row)
        and all(axis.strides[0] == axis.strides[1] for axis in axes)
    )


def alignments(problem: Gemm, axes: list[Axis], starts: Sequence[int]) -> list[int]:
    """Compute the alignment of every contiguous row or column of A, B and D: a power of two, at most 16 bytes.

    ``starts`` are bit unions of the operands' first addresses and 16. The contiguous stride of 1 does not count. If
    both strides are 1, as in sliding windows, one of them counts as the step from row to row.
    """
    extents = ((problem.m, problem.k), (problem.k, problem.n), (problem.m, problem.n))
    strides = (problem.a_row_col, problem.b_row_col, problem.d_row_col)
    result = []
    for which, start, own_extents, own_strides in zip((0, 1, 3), starts, extents, strides, strict=True):
        steps = [stride for extent, stride in zip(own_extents, own_strides, strict=True) if extent > 1]
        if 1 in steps:
            steps.remove(1)
        steps += [axis.strides[which] for axis in axes]
        result.append(lowest_bit(start, steps, (problem.d_dtype if which == 3 else problem.dtype).itemsize))
    return result
