"""The transpose+add kernel: D = alpha * X + beta * Y in one pass, for operands that lie along D's rows or across them.

X and Y are A and B of the operands; a problem's rows are those of D. Where D's columns are contiguous rather than its
rows, the problem is given with rows and columns changed over (:meth:`matmill.problem.Geam.swapped`).
"""

from __future__ import annotations

import numpy as np

from matmill.config import Config
from matmill.execute import Argument, Pointer
from matmill.kernel import GemmOperands, Geometry, Kernel
from matmill.kernels.transpose_add.space import against, blocks, space
from matmill.problem import Geam, View

__all__ = ["TRANSPOSE_ADD", "space"]

_NONE = View((0, 0))


def _geometry(problem: Geam, config: Config) -> Geometry:
    return Geometry(
        grid=(blocks(problem, config), problem.batch, 1),
        block=(config["THREADS"], 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Geam, operands: GemmOperands) -> tuple[Argument, ...]:
    views = (problem.x, problem.y or _NONE, problem.d)
    return (
        operands.a,
        Pointer("none", 0) if problem.y is None else operands.b,
        operands.d,
        np.int32(problem.m),
        np.int32(problem.n),
        *(np.int64(stride) for view in views for stride in (*view.strides, view.batch)),
        problem.dtype.accumulator.scalar(operands.alpha),
        problem.dtype.accumulator.scalar(operands.beta),
    )


TRANSPOSE_ADD: Kernel[Geam] = Kernel(
    entry="transpose_add",
    package=__name__,
    config=Config.of(
        V=4, BR=32, BC=32, THREADS=128, SHIFTED=0, PLAIN=0, X_MODE=1, X_WIDTH=4, Y_MODE=0, Y_WIDTH=4,
        SHARED_BYTES=4224, BLOCKS_PER_SM=8,
    ),
    geometry=_geometry,
    arguments=_arguments,
    legality=against,
)  # fmt: skip
