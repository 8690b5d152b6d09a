"""A and B exchanged: D's transpose is B's transpose times A's, so either side of D may be a tile's long one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matmill.config import Config, Configs
from matmill.kernel import GemmOperands
from matmill.memo import of_each_problem
from matmill.problem import Gemm


@of_each_problem
def exchanged(problem: Gemm) -> Gemm:
    """Return the problem of D's transpose: B's transpose times A's.

    >>> from matmill.dtypes import F16
    >>> other = exchanged(Gemm(2, 3, 4, F16, a_align=8))
    >>> other.m, other.n, other.a_row_col, other.b_row_col, other.d_row_col, other.b_align
    (3, 2, (1, 3), (1, 4), (1, 3), 8)
    """
    a_batch, b_batch, c_batch, d_batch = problem.batch_strides
    bias = {"row": "column", "column": "row"}.get(problem.epilogue.bias or "")
    return replace(
        problem,
        m=problem.n,
        n=problem.m,
        a_strides=problem.b_row_col[::-1],
        b_strides=problem.a_row_col[::-1],
        c_strides=problem.c_row_col[::-1] if problem.has_c else None,
        d_strides=problem.d_row_col[::-1],
        a_batch=b_batch,
        b_batch=a_batch,
        c_batch=c_batch,
        d_batch=d_batch,
        a_align=problem.b_align,
        b_align=problem.a_align,
        a_start_align=problem.b_start_align,
        b_start_align=problem.a_start_align,
        gram=False,
        epilogue=replace(problem.epilogue, bias=bias),
    )


def as_launched(problem: Gemm, config: Config) -> Gemm:
    """Return the problem as the kernel computes it."""
    return exchanged(problem) if config["EXCHANGED"] else problem


def launched_extents(problem: Gemm, config: Configs) -> tuple[Any, Any]:
    """Return m and n of :func:`as_launched`, for one configuration or for each of many."""
    swapped = config["EXCHANGED"]  # 0 or 1
    more = swapped * (problem.n - problem.m)
    return problem.m + more, problem.n - more


def as_bound(operands: GemmOperands, config: Config) -> GemmOperands:
    """Return the operands of :func:`as_launched`."""
    if not config["EXCHANGED"]:
        return operands
    return replace(operands, a=operands.b, b=operands.a, a_first=operands.b_first, b_first=operands.a_first)
