"""Warp groups with roles: one copies, two multiply."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.hopper import kernel, specialised
from matmill.problem import Gemm

CONFIG = specialised(128, 256, stages=4)

WARP_SPECIALISED: Rung[Gemm] = Rung(
    name="warp-specialised",
    source=OURS,
    changes="A warp group of its own copies, by one elected thread, and gives most of its registers to the others "
    "(setmaxnreg, 40 and 232). Two warp groups multiply 64 x 256 x 16 at a time, in a tile of 128x256 with four "
    "stages.",
    predicts="About 680 TFLOP/s on an H200 at 4096 and 620 at 8192. A tile of 128x256 takes 48 bytes of L2 per "
    "clock and SM instead of 64. fast.cu's step of this shape made 646 and 576; later, as mbarriers in PTX "
    "replaced those of the C++ library, it gained 19% and 10%, some of which is in here from the start. With one "
    "block per SM nothing hides a tile's first wait and its epilogue: some 5% of its 64 k-steps at 4096.",
    kernel=kernel("warp_specialised", __name__, CONFIG),
)
