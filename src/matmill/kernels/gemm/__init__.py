"""D = alpha * A @ B + beta * C on the plain FMA units, for any sizes, strides and alignments, float32 and float64.

The production twin of the SGEMM ladder's last rung: both are built on ``include/matmill/tile/simt_gemm.cuh``.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Geometry, Kernel
from matmill.problem import Gemm
from matmill.tiles import TILES, against, arguments, threads, tiles, with_copies


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tiles(problem, config), problem.batch, 1),
        block=(threads(config), 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def _legality(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    return against(problem, config)


GEMM: Kernel[Gemm] = Kernel(
    entry="gemm",
    package=__name__,
    config=with_copies(TILES[4][0], Gemm(m=128, n=256, k=8)),
    geometry=_geometry,
    arguments=arguments,
    legality=_legality,
)
