"""A pipeline of TMA copies on full and empty mbarriers."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import kernel, staged
from matmill.problem import Gemm

CONFIG = staged(128, 128, stages=3)

TMA_PIPELINE: Rung[Gemm] = Rung(
    name="tma-pipeline",
    source=OURS,
    changes="Three stages, each with an mbarrier that says when its bytes have come and one that says when all "
    "warps have read it. The thread that copies still multiplies too. No barrier of the block in the loop.",
    predicts="500 to 540 TFLOP/s on an H200 at 4096: two k-steps of 512 clocks each are in flight, which covers "
    "the latency of L2, about 700. fast.cu's next step has this tile and such a pipeline, with a warp group that "
    "only copies, and made 538 there, 462 at 8192. What remains is the traffic: 32 KB per 512 clocks are 64 bytes "
    "per clock and SM, about all that L2 gives.",
    kernel=kernel("tma_pipeline", __name__, CONFIG),
)
