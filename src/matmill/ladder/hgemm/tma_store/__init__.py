"""Results leave by stmatrix and TMA."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import block_per_sm, kernel, resident, specialised
from matmill.problem import Gemm

CONFIG = specialised(128, 256, stages=3, staging=1).launched(BLOCKS=132)

TMA_STORE: Rung[Gemm] = Rung(
    name="tma-store",
    source=OURS,
    changes="Sums are rounded in pairs, written to a swizzled buffer by stmatrix without bank conflicts, and "
    "stored by TMA in boxes of 64 x 64, while the next tile is multiplied. The buffer replaces the fourth stage.",
    predicts="730 to 745 TFLOP/s on an H200 at 4096 and 8192: matmill's example of this structure, with B stored "
    "by columns, made 739 and 744 there, and cuBLAS 720 and 716 in the same run. 16 stmatrix per warp replace 64 "
    "stores that half fill 8 sectors each. To lose a stage of four costs nothing: two in flight cover the latency. "
    "fast.cu saw less, 692 and 651 with TMA stores, 719 and 683 with stmatrix besides.",
    kernel=kernel("tma_store", __name__, CONFIG, block_per_sm, stores_boxes=True),
    tune=resident(CONFIG),
)
