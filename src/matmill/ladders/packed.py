"""The host code that products of packed float32 matrices share: parameters, why_not, launch shapes, published times.

Every rung of the SGEMM ladder, and the product of the memory ladder, computes C = alpha * A @ B + beta * C on packed
row-major matrices, with the parameters
``(const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta)``. If beta is 0, C is not
read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import F32
from matmill.kernel import GemmOperands, Geometry, ceil_div, multiples
from matmill.launch import Argument
from matmill.problem import Gemm


def packed_arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    """Return the parameters of every rung, in order."""
    return (
        operands.a,
        operands.b,
        operands.d,
        np.int32(problem.m),
        np.int32(problem.n),
        np.int32(problem.k),
        np.float32(operands.alpha),
        np.float32(operands.beta),
    )


def packed(m: int = 1, n: int = 1, k: int = 1) -> Callable[[Gemm, Config, Arch], str | None]:
    """Return ``why_not_config`` of a rung: one product of packed float32 matrices, whose sizes m, n and k divide."""
    divides = multiples(m, n, k)

    def why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
        if problem.dtype != F32:
            return f"{problem.dtype.name} is not float32"
        if problem.batch != 1:
            return f"a batch of {problem.batch} is not one product"
        given = {"A": problem.a_row_col, "B": problem.b_row_col, "C": problem.d_row_col}
        for name, columns in (("A", problem.k), ("B", problem.n), ("C", problem.n)):
            if given[name] != (columns, 1):
                return f"strides {given[name]} of {name} are not those of a packed matrix, {(columns, 1)}"
        return divides(problem, config, arch)

    return why_not


def tiles(rows: int, columns: int, block: tuple[int, int]) -> Callable[[Gemm, Config], Geometry]:
    """Return one block of ``block`` = (x, y) threads for each ``rows`` x ``columns`` tile of C.

    A block's x dimension runs along columns.
    """

    def geometry(problem: Gemm, _config: Config) -> Geometry:
        return Geometry(
            grid=(ceil_div(problem.n, columns), ceil_div(problem.m, rows), 1),
            block=(*block, 1),
        )

    return geometry


def reported(size: int, milliseconds: dict[str, float], note: str = "") -> str:
    """Format a source's times for a square product, by GPU, with their rates (an FMA is two operations).

    >>> reported(1024, {"GTX Titan X": 2.65})
    'At 1024: 2.65 ms (0.81 TFLOP/s) on GTX Titan X.'
    """
    times = ", ".join(f"{ms:g} ms ({2 * size**3 / ms / 1e9:.3g} TFLOP/s) on {gpu}" for gpu, ms in milliseconds.items())
    return f"At {size}: {times}.{' ' if note else ''}{note}"
