"""What the rungs of the SGEMM ladder share on the host: their parameters and their launch shapes.

Every rung computes C = alpha * A @ B + beta * C in float32 on packed row-major matrices, with the parameters
``(const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta)``. Where beta is 0, C is not
read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.config import Config
from matmill.execute import Argument
from matmill.kernel import GemmOperands, Geometry, ceil_div
from matmill.problem import Gemm


def packed_arguments(problem: Gemm, operands: GemmOperands) -> tuple[Argument, ...]:
    """The parameters of every rung, in order."""
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


def tiles(rows: int, columns: int, block: tuple[int, int]) -> Callable[[Gemm, Config], Geometry]:
    """One block of ``block`` = (x, y) threads for each ``rows`` x ``columns`` tile of C; x runs along columns."""

    def geometry(problem: Gemm, _config: Config) -> Geometry:
        return Geometry(
            grid=(ceil_div(problem.n, columns), ceil_div(problem.m, rows), 1),
            block=(*block, 1),
        )

    return geometry
