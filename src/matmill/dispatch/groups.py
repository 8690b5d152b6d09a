"""Products of groups: grouped_mm as an operation, and the launches of lists of matrices.

The ends of groups are an operand, in the place of a bias: they are read where the product runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from matmill.arch import Arch
from matmill.arrays import Operand
from matmill.choose import Choice, choose_from, entries
from matmill.dispatch.gemm import product_operands, sums
from matmill.dispatch.validate import Operation, Request
from matmill.dtypes import ALL, I32, I64, U32, U64, DType
from matmill.errors import ShapeError
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands
from matmill.kernels.grouped import ENTRY
from matmill.launch import Launch, Pointer
from matmill.lowering import Shape, SubProblem
from matmill.lowering.axes import Axis, Lattice, Slot, canonical, lowest_bit
from matmill.lowering.gemm import alignments
from matmill.problem import Gemm, Grouped, Listed, Strides

#: Types of elements that are multiplied in groups, and of their ends.
ELEMENTS: dict[str, DType] = {**ALL, **{d.name: d for d in (I32, U32, I64, U64)}}
ENDS: dict[str, DType] = {d.name: d for d in (I32, I64)}
#: The slots of A, B, C, D and the workspace with A and B exchanged.
_EXCHANGED: tuple[Slot, ...] = ((1, 0), (0, 0), (2, 0), (3, 0), (4, 0))
_AT_ONCE = Lattice(((0, 0, 0, 0),))
#: A distance between rows that stands for any, where the alignment says how they start; elements of the widest copy.
_APART, _WIDEST = 2**20, 16

Array = NDArray[Any]


def _parts(request: Request) -> tuple[Operand, Operand, Operand]:
    """Return A, B and the ends of the groups."""
    return (*product_operands(request), cast("Operand", request.bias))


def _shape(request: Request) -> Shape:
    """Return the shape of the result: groups are rows of A, columns of B, or terms of both."""
    a, b, ends = _parts(request)
    shapes = f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
    kinds = {(2, 3): ("rows of a", b.shape[0]), (3, 2): ("columns of b", a.shape[0]), (2, 2): ("terms of k", None)}
    kind, groups = kinds.get((len(a.shape), len(b.shape)), ("", None))
    if not kind:
        raise ShapeError(
            argument="a, b",
            got=shapes,
            wanted="(rows, k) and (groups, k, n), (groups, m, k) and (k, columns), or (m, terms) and (terms, n)",
            fix="Use matmul for batches of products of one size.",
        )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            argument="a, b",
            got=shapes,
            wanted=f"the last dimension of a ({a.shape[-1]}) to equal b's second-last ({b.shape[-2]})",
            fix="Transpose one of them if it is stored the other way.",
        )
    if len(ends.shape) != 1 or ends.shape[0] != (ends.shape[0] if groups is None else groups):
        raise ShapeError(
            argument="offsets",
            got=f"shape {tuple(ends.shape)}",
            wanted=f"{'one dimension' if groups is None else f'({groups},)'}: where each group of {kind} ends",
            fix="Pass the cumulative sizes of the groups, without a leading 0.",
        )
    return (ends.shape[0], a.shape[0], b.shape[1]) if groups is None else (a.shape[-2], b.shape[-1])


def _lower(request: Request, d: Operand) -> tuple[SubProblem[Grouped], ...]:
    a, b, ends = _parts(request)
    if not all(d.shape):
        return ()
    exchanged = len(a.shape) == 3
    if exchanged:  # columns of B are rows of its transpose
        a, b, d = b.transposed, a.transposed, d.transposed
    groups, terms = ends.shape[0], len(b.shape) == 2
    (m, k), n = a.shape, b.shape[-1]
    whole = Gemm(
        m=m,
        n=n,
        k=0 if request.alpha == 0 else k,
        dtype=a.dtype,
        batch=groups,
        a_strides=canonical((a.strides[0], a.strides[1]), m, k),
        b_strides=canonical((b.strides[-2], b.strides[-1]), k, n),
        d_strides=canonical((d.strides[-2], d.strides[-1]), m, n),
        a_batch=0,
        b_batch=0 if terms else b.strides[0],
        d_batch=d.strides[0] if terms else 0,
    )
    axes = [Axis(groups, whole.batch_strides)] if groups > 1 else []
    a_align, b_align, d_align = alignments(whole, axes, [operand.address | 16 for operand in (a, b, d)])
    whole = replace(whole, a_align=a_align, b_align=b_align, d_align=d_align)
    words = ends.strides[0] * ends.dtype.itemsize // I32.itemsize
    return (SubProblem(Grouped(whole, groups, words, terms), _AT_ONCE, _EXCHANGED if exchanged else ()),)


def _bounds(ends: Array, extent: int) -> Iterator[slice]:
    """Yield the rows, columns or terms of each group, as the kernels read the offsets."""
    start = 0
    for end in np.clip(ends, 0, extent).tolist():
        yield slice(start, max(start, end))
        start = end


def _compute(request: Request, shape: Shape) -> Array:
    """Return the products by NumPy's BLAS, group by group; what no group has is 0."""
    a, b, ends = (operand.owner for operand in _parts(request))
    dtype = request.a.dtype
    result = np.zeros(shape, dtype.accumulator.numpy)
    if request.alpha != 0 and 0 not in shape:
        for group, own in enumerate(_bounds(ends, b.shape[0] if a.ndim == b.ndim else shape[a.ndim - 2])):
            if a.ndim == b.ndim:
                result[group] = sums(a[:, own], b[own], dtype)
            elif a.ndim == 2:
                result[own] = sums(a[own], b[group], dtype)
            else:
                result[:, own] = sums(a[group], b[:, own], dtype)
    if request.alpha != 1:
        result *= dtype.accumulator.numpy.type(request.alpha)
    return result.astype(dtype.numpy, copy=False)


GROUPED_MM = Operation("a", "b", "c", _shape, _lower, _compute, beta=0.0, third="offsets")


#: Addresses of A, B, C and D; their row and column strides; m, n, k.
Row = tuple[int, ...]


def list_launches(
    rows: Sequence[Row], dtype: DType, by: tuple[float, float], arch: Arch
) -> Iterator[tuple[Source, Launch]]:
    """Yield the launches that compute a list of products, times alpha and plus beta times C, the numbers of ``by``.

    A launch has as many products as a table has room for. Those with many terms come first, so that no long one is
    left over at the end. Without C its address is D's. Raises :class:`~matmill.errors.IllegalConfigError` where no
    kernel takes the elements.
    """
    alpha, beta = by
    whole = listed(rows, dtype, read_c=beta != 0, skip=alpha == 0)
    if whole is None:
        return
    kernel = _list_choice(whole.typical, whole.layout, arch).kernel
    nowhere = Pointer("in the table", 16)
    operands = GemmOperands(nowhere, nowhere, nowhere, nowhere, alpha, beta)
    nbytes = kernel.config["GROUPS"] * ENTRY.itemsize
    for start in range(0, len(whole.groups), nbytes):
        table = replace(whole, groups=whole.groups[start : start + nbytes])
        yield generate(kernel, dtype), kernel.launch(table, operands)


@lru_cache(maxsize=1024)
def _list_choice(typical: Gemm, layout: Gemm, arch: Arch) -> Choice[Listed]:
    """Choose the kernel for a list by all but its table, of which only the number of groups matters."""
    problem = Listed(typical, layout, np.ones(typical.batch, ENTRY).tobytes())
    return choose_from(entries(problem), problem, arch)


def listed(rows: Sequence[Row], dtype: DType, *, read_c: bool, skip: bool) -> Listed | None:
    """Return the problem of a list, or None where no D has elements. With ``skip`` A and B are not read."""
    table = np.array([(*row, 0) for row in rows], ENTRY)
    table = table[(table["m"] > 0) & (table["n"] > 0)]
    if not len(table):
        return None
    if skip:
        table["k"] = 0
    table = table[np.argsort(-table["k"], kind="stable")]
    m, n, k = (table[name] for name in "mnk")
    with_terms = table[k > 0]
    layouts = tuple(
        _layout(some[name], some[f"{name}_row"], some[f"{name}_column"], dtype.itemsize)
        for name, some in (("a", with_terms), ("b", with_terms), ("d", table))
    )
    common = tuple(gcd(_WIDEST, *extent.tolist()) for extent in (m, n, k))
    count = len(table)
    mean = tuple(_rounded(int(extent.sum()) // count) for extent in (m, n, k))
    return Listed(*_described(dtype, layouts, common, mean, _rounded(count), read_c=read_c), table.tobytes())


#: Row and column strides, and the alignment of every row or column.
_Layout = tuple[Strides, int]


def _layout(addresses: Array, rows: Array, columns: Array, itemsize: int) -> _Layout:
    """Return what all matrices of a list have in common: any strides, or those of one contiguous dimension."""
    for strides, along, pitch in (((_APART, 1), columns, rows), ((1, _APART), rows, columns)):
        if (along == 1).all() and (pitch > 0).all():
            return strides, lowest_bit(int(np.bitwise_or.reduce(addresses)) | 16, pitch.tolist(), itemsize)
    return (_APART, 2), itemsize


@lru_cache(maxsize=1024)
def _described(
    dtype: DType,
    layouts: tuple[_Layout, ...],
    common: tuple[int, ...],
    mean: tuple[int, ...],
    count: int,
    *,
    read_c: bool,
) -> tuple[Gemm, Gemm]:
    """Return the typical product and the layout of a list."""
    (a, a_align), (b, b_align), (d, d_align) = layouts
    (m, n, k), (m_mean, n_mean, k_mean) = common, mean
    aligned = Gemm(m, n, k, dtype, a_align=a_align, b_align=b_align, d_align=d_align, has_c=read_c)
    layout = replace(aligned, a_strides=a, b_strides=b, d_strides=d)
    return replace(layout, m=m_mean, n=n_mean, k=k_mean, batch=count), layout


def _rounded(count: int) -> int:
    """Round up to three binary digits, so that lists of about the same sizes share a choice.

    >>> [_rounded(count) for count in (0, 3, 17, 1000)]
    [1, 3, 20, 1024]
    """
    step = 1 << max(0, count.bit_length() - 3)
    return max(1, -(-count // step) * step)
