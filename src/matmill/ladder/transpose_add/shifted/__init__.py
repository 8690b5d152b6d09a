"""16-byte accesses whatever the pitch: each row's part of a tile starts where the row is aligned."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.kernels.transpose.tiles import kernel
from matmill.ladder.documents import OURS
from matmill.ladder.transpose_add.common import tuned
from matmill.problem import Geam

SHIFTED: Rung[Geam] = Rung(
    name="shifted",
    source=OURS,
    changes="A block's part of each row of the result is moved to the left until it starts on 16 bytes, and x is read "
    "from the 16-byte boundary before; only what sticks out of the matrix goes element by element.",
    predicts="16-byte vectors on all three sides for any pitch: twice as wide as wide's at 24300 bfloat16, eight times "
    "at odd ones. A tile needs up to 7 columns of bfloat16 more from x, which neighbouring blocks read as well: 11% of "
    "x from L2 where tiles are 64 columns wide, none of it from memory if they run at the same time.",
    kernel=kernel("shifted", __name__),
    tune=tuned(shifted=True),
)
