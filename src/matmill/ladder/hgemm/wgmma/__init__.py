"""wgmma from shared memory that TMA fills, one stage."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import kernel, staged
from matmill.problem import Gemm

CONFIG = staged(128, 128)

WGMMA: Rung[Gemm] = Rung(
    name="wgmma",
    source=OURS,
    changes="Hopper's own instruction: one warp group multiplies 64 x 128 x 16 at a time, both operands from "
    "shared memory, without ldmatrix and fragments. One thread copies boxes of 64 x 64 by TMA, swizzled on the "
    "way. Tiles of 128x128 with k 64, one stage. For compute capability 9.0 alone.",
    predicts="About 410 TFLOP/s on an H200 at 4096 and 8192, less than float32-sums: fast.cu's step of the same "
    "tile and one stage made 413 and 410 there. A block multiplies for 512 clocks per k-step, then waits for L2 "
    "longer than that; the two other blocks of the SM do not fill all of it. One instruction per warp does what 16 "
    "of mma.sync did, and none loads fragments.",
    kernel=kernel("wgmma_tile", __name__, CONFIG),
)
