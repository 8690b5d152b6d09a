"""All accesses as wide as the alignment of every row allows, and all loads before the first wait."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.kernels.transpose.tiles import kernel
from matmill.ladder.documents import OURS
from matmill.ladder.transpose_add.common import tuned
from matmill.problem import Geam

WIDE: Rung[Geam] = Rung(
    name="wide",
    source=OURS,
    changes="Any size, stride and alignment. y and the result are accessed in vectors as wide as the alignment of "
    "every row allows (8 bytes where rows are 24300 bfloat16), x as well; all of a thread's loads are issued before "
    "anything waits. Elements of 1 or 2 bytes go through shared memory in words of 4, which a thread makes of columns "
    "side by side in its registers; columns of words are an odd number of words apart. Blocks take tiles in raster "
    "order within groups.",
    predicts="An eighth of v1's instructions for y and the result where rows start on 16 bytes, a quarter on 8. No "
    "bank conflict on reads. Bytes in flight are tile times resident blocks instead of one vector per thread: 23 KB "
    "per SM of an H200 are bandwidth times 0.7 us. Rows of an odd number of elements fall back to single elements.",
    kernel=kernel("wide", __name__),
    tune=tuned(shifted=False),
)
