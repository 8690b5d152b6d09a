"""D = alpha * A @ B + beta * C on the plain FMA units, for any sizes, strides and alignments, float32 and float64.

The production twin of the SGEMM ladder's last rung: both are built on ``include/matmill/tile/simt_gemm.cuh``.
"""

from __future__ import annotations

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.execute import Argument
from matmill.kernel import GemmOperands, Geometry, Kernel
from matmill.problem import Gemm
from matmill.tiles import TILES, against, threads, tiles, with_copies


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tiles(problem, config), problem.batch, 1),
        block=(threads(config), 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _arguments(problem: Gemm, operands: GemmOperands) -> tuple[Argument, ...]:
    strides = zip(
        (problem.a_row_col, problem.b_row_col, problem.c_row_col, problem.d_row_col),
        problem.batch_strides,
        strict=True,
    )
    return (
        operands.a,
        operands.b,
        operands.c,
        operands.d,
        np.int32(problem.m),
        np.int32(problem.n),
        np.int32(problem.k),
        *(np.int64(stride) for row_col, batch in strides for stride in (*row_col, batch)),
        problem.dtype.scalar(operands.alpha),
        problem.dtype.scalar(operands.beta),
    )


def _legality(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    return against(problem, config)


GEMM: Kernel[Gemm] = Kernel(
    entry="gemm",
    package=__name__,
    config=with_copies(TILES[4][0], Gemm(m=128, n=256, k=8)),
    geometry=_geometry,
    arguments=_arguments,
    legality=_legality,
)
