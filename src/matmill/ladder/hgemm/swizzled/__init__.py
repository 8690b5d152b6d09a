"""Shared tiles whose rows begin in different banks, by XOR."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S2
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)

SWIZZLED: Rung[Gemm] = Rung(
    name="swizzled",
    source=S2,
    changes="In row r of both shared tiles the 16-byte piece p is stored at slot p XOR (r mod 8). No padding.",
    predicts="1 wavefront per 8x8 matrix instead of 8: 32 per warp and 16 of k for 32 multiplications, so that "
    "ldmatrix no longer waits for banks. The tiles take as many bytes as before.",
    claim="About 50% of cuBLAS on T4.",
    kernel=kernel("swizzled", __name__, CONFIG),
    tune=narrow_or_wide(CONFIG),
)
