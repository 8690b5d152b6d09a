"""The whole pipeline, with the tile shape chosen for the problem."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import Geometry, Kernel, Rung
from matmill.kernels.gemm import cost
from matmill.kernels.gemm.tiles import TILES, space, threads, why_not, with_vector_widths
from matmill.kernels.shared.tiled import tile_count
from matmill.ladder.documents import OURS
from matmill.ladder.packed import packed, packed_arguments
from matmill.problem import Gemm


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    return packed()(problem, config, arch) or why_not(problem, config)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(tile_count(problem, config), 1, 1), block=(threads(config), 1, 1), dynamic_shared=config["SHARED_BYTES"]
    )


def _tune(problem: Gemm, arch: Arch) -> Config:
    return min(space(problem, arch), key=lambda config: cost.predict(problem, config, arch))


TUNED: Rung[Gemm] = Rung(
    name="tuned",
    source=OURS,
    changes="A third buffer, fragments of the next k read while this one computes (across the barrier too), blocks "
    "walking C in groups of tiles that share L2, bounds handled for any size, and the tile shape picked by the cost "
    "model: smaller tiles with k split among groups of warps where large ones would leave SMs idle.",
    predicts="Shared-memory latency leaves the critical path: the FMA units stay busy over the barrier. At 1024 the "
    "GPU has 128 tiles of 64x128 to work on instead of 32 of 128x256.",
    kernel=Kernel(
        entry="tuned",
        package=__name__,
        config=with_vector_widths(TILES[4][0], Gemm(m=128, n=256, k=8)),
        geometry=_geometry,
        arguments=packed_arguments,
        why_not_config=_why_not,
    ),
    tune=_tune,
)
