"""Complex products as they are, or as real ones: copies of complex operands around the problems of a real product.

A product as it is has complex elements and needs no copies. The cost models of a GPU choose one of the two ways.

A complex matrix whose rows are contiguous is a real one with twice the columns in the same memory. Its real product
with the other operand, of which each element is a block of 2 x 2 real ones, is the complex product, with as many
operations. So one operand and the result stay where they are, and the other is expanded in the workspace. What is not
contiguous is copied too. The transposed product exchanges the operands: the way whose copies cost less is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

from matmill.arrays import Operand
from matmill.kernel import ceil_div
from matmill.lowering.axes import NO_AXIS, Axis, Slot, SubProblem, broadcast_strides, collapse, grids
from matmill.lowering.gemm import lower_gemm
from matmill.problem import ComplexCopy

#: The slots of A, B, C, D and the workspace among a plan's addresses.
_A, _B, _C, _D, _WORKSPACE = range(5)
#: An address of the workspace, beyond all others.
_FIRST = 2**63
#: Bytes on which rows of a copy start, and copies: enough for any kernel.
_ROW, _COPY = 16, 256
#: The most rows, columns and terms of products that have a kernel of their own, for any number of them.
_SMALL = 16
#: Bytes that an H100 copies in the time of one launch more.
_LAUNCH = 2**22


class _Matrix(NamedTuple):
    """An operand (..., rows, columns), its slot among a plan's addresses, and whether it is conjugated."""

    operand: Operand
    slot: int
    conjugate: bool = False

    @property
    def transposed(self) -> _Matrix:
        return self._replace(operand=_transposed(self.operand))

    @property
    def contiguous(self) -> bool:
        """True if each row is contiguous."""
        return self.operand.strides[-1] == 1 or self.operand.shape[-1] == 1

    @property
    def reals(self) -> Operand:
        """The matrix as one of real elements, with twice the columns."""
        *shape, columns = self.operand.shape
        strides = (*(2 * stride for stride in self.operand.strides[:-1]), 1)
        part = self.operand.dtype.part or self.operand.dtype
        return self.operand._replace(shape=(*shape, 2 * columns), strides=strides, dtype=part)

    def at(self) -> Slot:
        """Return where a plan finds the matrix."""
        return self.slot, self.operand.address - _FIRST if self.slot == _WORKSPACE else 0

    def is_copied(self, *, complex_beta: bool) -> bool:
        """Tell whether the matrix is copied where it is not the expanded one."""
        return not self.contiguous or (self.slot == _C and (self.conjugate or complex_beta))


#: The two operands, of which the second is expanded, C and D.
_Way: TypeAlias = tuple[_Matrix, _Matrix, "_Matrix | None", _Matrix]


@dataclass
class _Copies:
    """Copies in the workspace: the stages that write them, and their bytes until now."""

    stages: list[SubProblem[ComplexCopy]] = field(default_factory=list)
    nbytes: int = 0

    def room(self, like: Operand, *, wide: int = 1) -> _Matrix:
        """Reserve a matrix with ``wide`` rows for each of another one."""
        *batch, rows, columns = like.shape
        size = like.dtype.itemsize
        pitch = ceil_div(columns * size, _ROW) * _ROW // size
        shape = (*batch, wide * rows, columns)
        strides = (*(prod(shape[at:-1]) * pitch for at in range(1, len(shape))), 1)
        address = _FIRST + self.nbytes
        self.nbytes += ceil_div(prod(shape[:-1]) * pitch * size, _COPY) * _COPY
        return _Matrix(like._replace(shape=shape, strides=strides, address=address, owner=None), _WORKSPACE)

    def add(self, source: _Matrix, *, block: str = "", **how: Any) -> _Matrix:
        """Copy a matrix, once where it is repeated along the batch, and return its copy."""
        *batch, rows, columns = source.operand.shape
        extents = (extent if stride else 1 for extent, stride in zip(batch, source.operand.strides, strict=False))
        once = source._replace(operand=source.operand._replace(shape=(*extents, rows, columns)))
        target = self.room(once.operand, wide=2 if block else 1)
        self.stages += _stages(once, target, block=block, **how)
        return target


def lower_complex(
    a: Operand,
    b: Operand,
    c: Operand | None,
    d: Operand,
    conjugates: str = "",
    *,
    complex_beta: bool = False,
    skip_product: bool = False,
    **how: Any,
) -> tuple[SubProblem[Any], ...]:
    """Return the problems that compute D = alpha * A @ B + beta * C, as :func:`lower_gemm` does.

    They are one of complex elements, with what a real product needs in its stead. Sums of another precision or order
    than usual, and wider ones, have the real product alone, but small ones any precision. ``conjugates`` names the
    operands whose conjugates are meant, such as ``"a"`` or ``"bc"``. ``how`` are options of :func:`lower_gemm`.
    """
    if not all(d.shape):
        return ()
    small = max(a.shape[-2:]) <= _SMALL and max(b.shape[-2:]) <= _SMALL
    usual = small or how.get("precision", "default") == "default"
    if not usual or how.get("batch_invariant") or a.dtype is not d.dtype or skip_product or a.shape[-1] == 0:
        return _expanded(a, b, c, d, conjugates, complex_beta=complex_beta, skip_product=skip_product, **how)
    product = [
        replace(one, problem=replace(one.problem, conjugates=conjugates))
        for one in lower_gemm(a, b, c, d, taller=not small)
    ]
    if small:
        return tuple(product)
    instead = _expanded(a, b, c, d, conjugates, complex_beta=complex_beta, **how)
    return (replace(product[0], instead=instead),) if len(product) == 1 else instead


def _expanded(
    a: Operand,
    b: Operand,
    c: Operand | None,
    d: Operand,
    conjugates: str,
    *,
    complex_beta: bool,
    skip_product: bool = False,
    **how: Any,
) -> tuple[SubProblem[Any], ...]:
    """Return a real product and the copies around it.

    A ``complex_beta`` is multiplied into a copy of C, a complex alpha into the expanded operand.
    """
    row, column = [-2] * (len(a.shape) == 1), [-1] * (len(b.shape) == 1)
    left, right = _matrix(a, _A, row, conjugates), _matrix(b, _B, column, conjugates)
    added = None
    if c is not None:
        strides = broadcast_strides(c.shape, c.strides, len(d.shape))
        added = _matrix(c._replace(shape=d.shape, strides=strides), _C, row + column, conjugates)
    result = _matrix(d, _D, row + column)
    ways: list[_Way] = [(left, right, added, result)]
    if not how.get("batch_invariant"):  # rows of which stay rows
        ways.append((right.transposed, left.transposed, added and added.transposed, result.transposed))
    left, right, added, result = min(ways, key=lambda way: _cost(way, complex_beta=complex_beta))
    copies = _Copies()
    if added is not None and added.is_copied(complex_beta=complex_beta):
        added = copies.add(added, conjugate=added.conjugate, scale="beta")
    factors = left.reals, right.reals
    if not skip_product and a.shape[-1] > 0:
        signs = {"conjugate": right.conjugate, "negate": left.conjugate}
        left = left if left.contiguous else copies.add(left)
        # Blocks are stored along the shorter stride.
        if abs(right.operand.strides[-1]) > abs(right.operand.strides[-2]):
            right = copies.add(right.transposed, block="columns", scale="alpha", **signs)
            factors = left.reals, _transposed(right.reals)
        else:
            right = copies.add(right, block="rows", scale="alpha", **signs)
            factors = left.reals, right.reals
    target = result if result.contiguous else copies.room(result.operand)
    sums = None if added is None else added.reals
    slots = tuple(one.at() for one in (left, right, added or target, target))
    products = lower_gemm(*factors, sums, target.reals, skip_product=skip_product, **how)
    multiplied = [replace(one, slots=slots) for one in products]
    after = [] if target is result else _stages(target, result)
    reserved = _WORKSPACE, copies.nbytes
    stages: list[SubProblem[Any]] = [*copies.stages, *multiplied, *after]
    return tuple(replace(one, slots=(*one.slots, reserved)) for one in stages)


def _cost(way: _Way, *, complex_beta: bool) -> int:
    """Count the bytes that copies move, and launches as bytes; of the expanded one, its later reading too."""
    left, expanded, added, result = way
    copied = [one for one in (left, added, result) if one is not None and one.is_copied(complex_beta=complex_beta)]
    moved = 4 * _nbytes(expanded.operand) + sum(2 * _nbytes(one.operand) for one in copied)
    return moved + _LAUNCH * len(copied)


def _nbytes(x: Operand) -> int:
    """Count the bytes of an operand in memory, of what is repeated only once."""
    return x.dtype.itemsize * prod(extent for extent, stride in zip(x.shape, x.strides, strict=True) if stride)


def _stages(source: _Matrix, target: _Matrix, *, block: str = "", **how: Any) -> list[SubProblem[ComplexCopy]]:
    """Return the copies of ``source`` to ``target``, which has twice the rows where there are blocks."""
    x, d, second = source.operand, target.operand, target.operand.strides[-2]
    steps = (*d.strides[:-2], second * (2 if block else 1))
    outer = [Axis(n, (a, 0, 0, b)) for n, a, b in zip(x.shape[:-1], x.strides[:-1], steps, strict=True)]
    *batch, rows = collapse(outer) or [NO_AXIS]
    size, (first, last) = x.dtype.itemsize, (one.at() for one in (source, target))
    return [
        SubProblem(
            ComplexCopy(
                rows.extent,
                x.shape[-1],
                x.dtype.part or x.dtype,
                (rows.strides[0], x.strides[-1], axis.strides[0]),
                (rows.strides[3], d.strides[-1], axis.strides[3]),
                axis.extent,
                block,
                second if block else 0,
                **how,
            ),
            offsets,
            (first, first, first, last),
        )
        for axis, offsets in grids(batch, (size, 0, 0, size))
    ]


def _matrix(x: Operand, slot: int, lacks: Sequence[int], conjugates: str = "") -> _Matrix:
    """Return an operand with the axes of extent 1 that vectors lack."""
    shape, strides = list(x.shape), list(x.strides)
    for at in lacks:
        where = len(shape) + at + 1
        shape.insert(where, 1)
        strides.insert(where, 0)
    return _Matrix(x._replace(shape=tuple(shape), strides=tuple(strides)), slot, "abcd"[slot] in conjugates)


def _transposed(x: Operand) -> Operand:
    shape, strides = ((*each[:-2], each[-1], each[-2]) for each in (x.shape, x.strides))
    return x._replace(shape=shape, strides=strides)
