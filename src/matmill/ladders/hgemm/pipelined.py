"""The host code that rungs on the pipeline of ``kernels/hgemm/mma.cuh`` share."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import F16
from matmill.kernel import Geometry, Kernel
from matmill.kernels.hgemm.tiles import LARGEST, rounds, shapes, space, threads, why_not, with_vector_widths
from matmill.kernels.shared.tiled import tile_count
from matmill.ladders.hgemm.common import arguments, block_per_tile, packed
from matmill.problem import Gemm


def any_kernel(entry: str, file: str, *, banded: bool = False) -> Kernel[Gemm]:
    """Return the descriptor of a rung that takes any size; ``banded`` blocks compute the position of their tile."""
    return Kernel(
        entry=entry,
        package="matmill.ladders.hgemm",
        file=file,
        config=with_vector_widths(LARGEST, Gemm(m=LARGEST["BM"], n=LARGEST["BN"], k=LARGEST["BK"], dtype=F16)),
        geometry=_banded if banded else block_per_tile,
        arguments=arguments,
        why_not_config=_why_not,
    )


def largest_tile(problem: Gemm, arch: Arch) -> Config:
    """Return the largest tile that the GPU holds, with float16 sums if the tensor cores have them."""
    return with_vector_widths(shapes(arch)[0].replace(ACC16=int(problem.dtype is F16)), problem)


def best_tile(problem: Gemm, arch: Arch) -> Config:
    """Return the tile with the least work for the busiest SM, with float32 sums."""
    return min(space(problem, arch), key=lambda config: rounds(problem, config, arch))


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    return packed(problem, config, arch) or why_not(problem, config, arch)


def _banded(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tile_count(problem, config), 1, 1), block=(threads(config), 1, 1), dynamic_shared=config["SHARED_BYTES"]
    )
