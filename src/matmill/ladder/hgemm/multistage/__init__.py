"""cp.async, three tiles deep."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged, tiled
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4, stages=3)

MULTISTAGE: Rung[Gemm] = Rung(
    name="multistage",
    source=OURS,
    changes="Tiles go from global to shared memory by cp.async, without registers between, into three stages: two "
    "tiles are in flight while one is multiplied.",
    predicts="A step of 256x256x32 lasts more than 1000 clocks on an SM of Hopper, two steps cover any latency of "
    "global memory; 32 registers per thread are free, and as many instructions per step gone.",
    kernel=kernel("multistage", __name__, CONFIG, tiled(asynchronous=True)),
    tune=narrow_or_wide(CONFIG),
)
