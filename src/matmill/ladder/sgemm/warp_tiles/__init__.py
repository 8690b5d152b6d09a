"""Square tiles for warps, and lanes numbered so that their shared reads merge."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import OURS
from matmill.ladder.packed import packed, packed_arguments, tiles
from matmill.problem import Gemm

WARP_TILES: Rung[Gemm] = Rung(
    name="warp-tiles",
    source=OURS,
    changes="A 128x256 tile is split among 2x4 warps, each with a 64x64 tile of its own instead of a 16x128 strip, and "
    "each thread owns 16x8 outputs. Lanes are numbered so that lane^1 shares its rows and lane^2 its columns.",
    predicts="6 shared reads per 128 FMAs instead of 8. The hardware merges the quarter-warps of a 16-byte "
    "read in pairs when such neighbours agree on the address, so each read takes 2 passes over the banks: 12 per warp "
    "and k for 128 FMAs, instead of 12 for 64.",
    kernel=Kernel(
        entry="warp_tiles",
        package=__name__,
        config=Config.of(BM=128, BN=256, BK=8, TM=16, TN=8),
        geometry=tiles(128, 256, (256, 1)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=256, k=8),
    ),
)
