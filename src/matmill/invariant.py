"""Batch-invariant sums: the slices of k, which depend on n, k, the element type and the precision alone.

A slice is summed from zero, term by term or group by group of the tensor cores, and slices are added in their order.
For few rows a block has one slice of a tile of D, for many all of them, one after the other: the sums are the same.
"""

from __future__ import annotations

from dataclasses import replace

from matmill.dtypes import F64, DType
from matmill.kernel import ceil_div
from matmill.problem import Gemm

#: Bytes of k of a step of wgmma: its slices are whole steps, all as many.
_STEP_BYTES = 128
#: Slices by tensor cores: those that a cluster may have, as many as leave some 64 tiles of 64 columns, and the fewest
#: terms. More would leave large tiles fewer registers for no gain.
_TENSOR_SLICES, _COLUMNS, _LEAST = (8, 4, 2), 4096, 768
#: Slices by FMA: tiles of so many columns and slices make so many blocks, one for each SM of a large GPU; the most
#: slices that one thread adds, the fewest terms, and what slices are multiples of, as all k-steps divide it.
_TILE, _BLOCKS, _MOST, _FEWEST, _MULTIPLE = 128, 144, 16, 192, 32


def slice_terms(n: int, k: int, dtype: DType, precision: str = "default") -> int:
    """Return the terms of a slice, at least 1: ``Gemm.slice_k`` of a batch-invariant product of n columns.

    >>> from matmill.dtypes import F16, F32
    >>> slice_terms(4096, 4096, F32), slice_terms(4096, 4096, F16), slice_terms(768, 3072, F16)
    (1024, 4096, 768)
    """
    whole = max(1, k)
    # Sums that are promoted are those of a block; float64 is fastest on tensor cores, which do not split k.
    if precision == "high" or dtype is F64:
        return whole
    if dtype.itemsize == 2 or precision == "tf32":
        step = _STEP_BYTES // dtype.itemsize
        steps = ceil_div(k, step)
        for slices in _TENSOR_SLICES:
            if steps % slices == 0 and slices * n <= _COLUMNS and steps // slices * step >= _LEAST:
                return steps // slices * step
        return whole
    slices = min(round(_BLOCKS / ceil_div(max(1, n), _TILE)), _MOST, k // _FEWEST)
    return ceil_div(ceil_div(k, slices), _MULTIPLE) * _MULTIPLE if slices > 1 else whole


def resliced(problem: Gemm) -> Gemm:
    """Return a batch-invariant problem with the slices that its extents, type and precision have; others unchanged."""
    if not problem.slice_k:
        return problem
    return replace(problem, slice_k=slice_terms(problem.n, problem.k, problem.dtype, problem.precision))
