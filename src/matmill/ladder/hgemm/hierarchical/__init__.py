"""Tiles for the block, the warp and the tensor core."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S2
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)

HIERARCHICAL: Rung[Gemm] = Rung(
    name="hierarchical",
    source=S2,
    changes="A 256x128 tile of D per block, k in steps of 64 through shared memory; 8 warps with 64x64 each in "
    "registers; ldmatrix feeds mma.sync of 16x8x16 (two of 16x8x8 on Turing). Copies are one element at a time.",
    predicts="2 bytes per load leave memory idle between copies, and ldmatrix takes 8 wavefronts per 8x8 matrix where "
    "1 would do: 256 wavefronts per warp and 16 of k for 32 multiplications, eight times what a shared memory of 128 "
    "bytes a clock needs for them.",
    claim="At 8192: 8% of cuBLAS on T4, with float16 sums.",
    kernel=kernel("hierarchical", __name__, CONFIG),
    tune=narrow_or_wide(CONFIG),
)
