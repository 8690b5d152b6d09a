"""A larger, flatter tile, and addresses that step by XOR."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S2
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4)

TILE_SHAPE: Rung[Gemm] = Rung(
    name="tile-shape",
    source=S2,
    changes="Tiles of 256x256 with k 32 instead of 256x128 with k 64, warp tiles of 128x64, and one address per lane "
    "and matrix from which all others follow by XOR or addition of constants. With float32 sums, which would fill "
    "all registers of an SM, 256x128 with warp tiles of 128x32.",
    predicts="128 FLOP per byte copied instead of 85, above T4's balance with L2 at any hit rate; 43 instead of 32 "
    "FLOP per byte read from shared memory. Integer instructions all but vanish from the inner loop.",
    claim="At 8192: 86.7% of cuBLAS on T4; 90 million instructions instead of 216 million (cuBLAS: 94 million).",
    kernel=kernel("tile_shape", __name__, CONFIG),
    tune=narrow_or_wide(CONFIG),
)
