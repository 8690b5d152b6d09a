"""Two consumers alternate between two tiles."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import block_per_sm, kernel, resident, specialised
from matmill.problem import Gemm

CONFIG = specialised(128, 128, stages=5, staging=2).launched(BLOCKS=132)

PINGPONG: Rung[Gemm] = Rung(
    name="pingpong",
    source=OURS,
    changes="No clusters. Each of the two consumers has a tile of 128x128 for itself, and named barriers let one "
    "begin its k-steps when the other has begun its last one: one stores while the other multiplies.",
    predicts="0 to 3% more than tma-store on an H200 at 4096 and below: there an epilogue of about 2000 clocks "
    "follows 64 k-steps of 1024, or fewer, and is now hidden. The same at 8192. Less at 16384: a tile of 128x128 "
    "takes 64 bytes of L2 per clock and SM instead of 48, and matmill's example with such a tile was 1% slower "
    "than with 128x256 at 4096 and 8192, and 10% at 16384.",
    kernel=kernel("pingpong", __name__, CONFIG, block_per_sm, stores_boxes=True),
    tune=resident(CONFIG),
)
