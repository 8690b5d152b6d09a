"""One block per SM walks over the tiles."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import block_per_sm, kernel, resident, specialised
from matmill.problem import Gemm

CONFIG = specialised(128, 256, stages=4).launched(BLOCKS=132)

PERSISTENT: Rung[Gemm] = Rung(
    name="persistent",
    source=OURS,
    changes="As many blocks as SMs, each with every so many tiles of the raster order. The producer does not wait "
    "for an epilogue: while sums are stored, the next tile's first four stages are loaded.",
    predicts="About 715 TFLOP/s on an H200 at 4096 and 690 at 8192, 5 to 10% more: launch, barriers and the first "
    "wait for L2 come once per SM instead of once per tile, 4 times less often at 4096 and 16 times at 8192. "
    "fast.cu had 715 and 666 at this point. The epilogue still stops the tensor cores, since both consumers store "
    "at the same time.",
    kernel=kernel("persistent", __name__, CONFIG, block_per_sm),
    tune=resident(CONFIG),
)
