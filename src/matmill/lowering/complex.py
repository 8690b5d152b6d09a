"""Complex products to real ones: copies of complex operands around the problems of a real product.

A complex matrix whose rows are contiguous is a real one with twice the columns in the same memory. Its real product
with the other operand, of which each element is a block of 2 x 2 real ones, is the complex product, with as many
operations. So one operand and the result stay where they are, and the other is expanded in the workspace. What is not
contiguous is copied too. The transposed product exchanges the operands: the way whose copies cost less is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from matmill.arrays import Operand
from matmill.dtypes import DType
from matmill.kernel import ceil_div
from matmill.lowering.axes import NO_AXIS, Axis, Shape, Slot, SubProblem, broadcast_strides, collapse, grids
from matmill.lowering.gemm import lower_gemm
from matmill.problem import ComplexCopy

#: The slots of A, B, C, D and the workspace among a plan's addresses.
_A, _B, _C, _D, _WORKSPACE = range(5)
#: An address of the workspace, beyond all others.
_FIRST = 2**63
#: Bytes on which rows of a copy start, and copies: enough for any kernel.
_ROW, _COPY = 16, 256
#: Bytes that an H100 copies in the time of one launch more.
_LAUNCH = 2**22


class _Matrix(NamedTuple):
    """An operand (..., rows, columns), its slot among a plan's addresses, and whether it is conjugated."""

    operand: Operand
    slot: int
    conjugate: bool = False

    @property
    def transposed(self) -> _Matrix:
        shape, strides = (_swapped(each) for each in (self.operand.shape, self.operand.strides))
        return self._replace(operand=self.operand._replace(shape=shape, strides=strides))

    @property
    def contiguous(self) -> bool:
        """True if each row is contiguous."""
        return self.operand.strides[-1] == 1 or self.operand.shape[-1] == 1

    @property
    def size(self) -> int:
        """The number of elements in memory."""
        return prod(extent for extent, stride in zip(*self.operand[:2], strict=True) if stride)

    @property
    def reals(self) -> Operand:
        """The matrix as one of real elements, with twice the columns."""
        *shape, columns = self.operand.shape
        strides = (*(2 * stride for stride in self.operand.strides[:-1]), 1)
        return self.operand._replace(shape=(*shape, 2 * columns), strides=strides, dtype=_part(self.operand.dtype))

    @property
    def once(self) -> _Matrix:
        """The matrix without repetitions along the batch."""
        *batch, rows, columns = self.operand.shape
        extents = (extent if stride else 1 for extent, stride in zip(batch, self.operand.strides, strict=False))
        return self._replace(operand=self.operand._replace(shape=(*extents, rows, columns)))

    def at(self, workspace: int) -> Slot:
        """Return where a plan finds the matrix; copies are in the workspace, from byte ``workspace`` on."""
        return self.slot, self.operand.address - workspace if self.slot == _WORKSPACE else 0


@dataclass
class _Product:
    """A product, its copies in the workspace, and their bytes until now."""

    a: _Matrix
    b: _Matrix
    c: _Matrix | None
    d: _Matrix
    nbytes: int = 0

    @property
    def transposed(self) -> _Product:
        c = None if self.c is None else self.c.transposed
        return _Product(self.b.transposed, self.a.transposed, c, self.d.transposed)

    def cost(self, *, scaled: bool) -> int:
        """Count the bytes that copies move, and launches as bytes; of the expanded one, its later reading too."""
        copied = [self.a, self.d, *([self.c] if self.c is not None else [])]
        sizes = [one.size for one in copied if self.copies(one, scaled=scaled)]
        moved = (4 * self.b.size + 2 * sum(sizes)) * self.b.operand.dtype.itemsize
        return moved + _LAUNCH * len(sizes)

    def copies(self, one: _Matrix, *, scaled: bool) -> bool:
        """Tell whether a matrix that is not expanded is copied; ``scaled`` tells of a complex beta."""
        return not one.contiguous or (one.slot == _C and (one.conjugate or scaled))

    def room(self, like: _Matrix, *, wide: int = 1) -> _Matrix:
        """Reserve a copy of a matrix, with ``wide`` rows for each."""
        *batch, rows, columns = like.operand.shape
        size = like.operand.dtype.itemsize
        pitch = ceil_div(columns * size, _ROW) * _ROW // size
        shape = (*batch, wide * rows, columns)
        strides = (*(prod(shape[at:-1]) * pitch for at in range(1, len(shape))), 1)
        address = _FIRST + self.nbytes
        self.nbytes += ceil_div(prod(shape[:-1]) * pitch * size, _COPY) * _COPY
        return _Matrix(like.operand._replace(shape=shape, strides=strides, address=address, owner=None), _WORKSPACE)


def lower_complex(
    a: Operand,
    b: Operand,
    c: Operand | None,
    d: Operand,
    *,
    conjugates: str = "",
    complex_beta: bool = False,
    skip_product: bool = False,
    precision: str = "default",
    batch_invariant: bool = False,
) -> tuple[SubProblem[Any], ...]:
    """Return the copies and the problems that compute D = alpha * A @ B + beta * C, as ``lower_gemm`` does.

    ``conjugates`` names the operands whose conjugates are meant, such as ``"a"`` or ``"bc"``. A ``complex_beta`` is
    multiplied into a copy of C, a complex alpha into the expanded operand.
    """
    if not all(d.shape):
        return ()
    lacks = [-2] * (len(a.shape) == 1) + [-1] * (len(b.shape) == 1)
    product = _Product(
        _matrix(a, _A, lacks[:1] if len(a.shape) == 1 else (), "a" in conjugates),
        _matrix(b, _B, lacks[-1:] if len(b.shape) == 1 else (), "b" in conjugates),
        None if c is None else _matrix(_broadcast(c, d.shape), _C, lacks, "c" in conjugates),
        _matrix(d, _D, lacks),
    )
    # Rows of a batch-invariant product stay rows.
    ways = (product,) if batch_invariant else (product, product.transposed)
    product = min(ways, key=lambda way: way.cost(scaled=complex_beta))
    reads = not skip_product and a.shape[-1] > 0
    before: list[SubProblem[Any]] = []
    left = product.a
    if reads and not left.contiguous:
        left = product.room(product.a.once)
        before += _copies(product.a.once, left)
    added = product.c
    if added is not None and product.copies(added, scaled=complex_beta):
        once = added.once
        added = product.room(once)
        before += _copies(once, added, conjugate=once.conjugate, scale="beta")
    target = product.d if product.d.contiguous else product.room(product.d)
    once = product.b.once
    along = abs(once.operand.strides[-1]) > abs(once.operand.strides[-2])  # rows of blocks are in columns then
    once = once.transposed if along else once
    right = product.room(once, wide=2)
    if reads:
        sign = {"conjugate": product.b.conjugate, "negate": product.a.conjugate}
        before += _copies(once, right, block="columns" if along else "rows", scale="alpha", **sign)
    expanded = right.reals
    if along:
        expanded = expanded._replace(shape=_swapped(expanded.shape), strides=_swapped(expanded.strides))
    stages = lower_gemm(
        left.reals,
        expanded,
        None if added is None else added.reals,
        target.reals,
        skip_product=skip_product,
        precision=precision,
        batch_invariant=batch_invariant,
    )
    where = (left, right, added or target, target)
    after = [] if target is product.d else _copies(target, product.d)
    reserved = _WORKSPACE, product.nbytes
    multiplied = [replace(one, slots=tuple(each.at(_FIRST) for each in where)) for one in stages]
    return tuple(replace(one, slots=(*one.slots, reserved)) for one in (*before, *multiplied, *after))


def _copies(source: _Matrix, target: _Matrix, *, block: str = "", **how: Any) -> list[SubProblem[ComplexCopy]]:
    """Return the copies of ``source`` to ``target``, which has twice the rows where there are blocks."""
    x, d, wide = source.operand, target.operand, 2 if block else 1
    row = d.strides[-2]
    steps = (*d.strides[:-2], wide * row)
    outer = [
        Axis(extent, (stride, 0, 0, step))
        for extent, stride, step in zip(x.shape[:-1], x.strides[:-1], steps, strict=True)
    ]
    *batch, rows = collapse(outer) or [NO_AXIS]
    sizes = (x.dtype.itemsize, 0, 0, d.dtype.itemsize)
    first, last = source.at(_FIRST), target.at(_FIRST)
    return [
        SubProblem(
            ComplexCopy(
                rows=rows.extent,
                columns=x.shape[-1],
                dtype=_part(x.dtype),
                x_strides=(rows.strides[0], x.strides[-1]),
                d_strides=(rows.strides[3], d.strides[-1]),
                batch=axis.extent,
                x_batch=axis.strides[0],
                d_batch=axis.strides[3],
                block=block,
                second=row if block else 0,
                **how,
            ),
            offsets,
            (first, first, first, last),
        )
        for axis, offsets in grids(batch, sizes)
    ]


def _matrix(x: Operand, slot: int, lacks: list[int] | tuple[int, ...], conjugate: bool = False) -> _Matrix:  # noqa: FBT001, FBT002
    """Return an operand with the axes of extent 1 that vectors lack."""
    shape, strides = list(x.shape), list(x.strides)
    for at in lacks:
        where = len(shape) + at + 1
        shape.insert(where, 1)
        strides.insert(where, 0)
    return _Matrix(x._replace(shape=tuple(shape), strides=tuple(strides)), slot, conjugate)


def _broadcast(x: Operand, shape: Shape) -> Operand:
    return x._replace(shape=shape, strides=broadcast_strides(x.shape, x.strides, len(shape)))


def _swapped(extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*extents[:-2], extents[-1], extents[-2])


def _part(dtype: DType) -> DType:
    return dtype.part or dtype
