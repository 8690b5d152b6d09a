"""The transpose+add ladder: D = alpha * X + beta * Y, X transposed, from an article's two kernels to any pitch."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.kernels.transpose.tiles import kernel
from matmill.ladders.documents import ARTICLE, OURS
from matmill.ladders.transpose_add.common import of_article, tuned
from matmill.problem import Geam

# -- The article's first kernel: X in 16-byte vectors, Y and D element by element.

V1: Rung[Geam] = Rung(
    name="v1",
    source=ARTICLE,
    idea="tiles of 16 bytes",
    changes="A block of 32 x 32 threads transposes 32 x 32 vectors of 16 bytes of x in shared memory; y and the result "
    "are read and written element by element.",
    predicts="One pass, every byte once. A warp's access to y or the result is 32 elements: 64 bytes of bfloat16 where "
    "512 would fit in one instruction. A warp reads the tile at a distance of 33 vectors: 132 words, so that "
    "32 lanes meet in 8 banks, 4 passes where one would do.",
    claim="The article: 0.183 ms on an A800 against 0.498 ms in eager PyTorch and 0.162 ms with torch.compile. The "
    "times cannot belong to the shape named (1.68 GB in 0.140 ms would be 12 TB/s on a GPU with 2.0); the ratios are "
    "what counts.",
    kernel=of_article("v1", "v1.cuh", elements=1),
)


# -- The article's second kernel: Y and D two elements at a time.

V2: Rung[Geam] = Rung(
    name="v2",
    source=ARTICLE,
    idea="two elements at a time",
    changes="64 columns of x to a block, and y and the result two elements at a time: rows of 24300 bfloat16 start on "
    "8 bytes, not on 16.",
    predicts="Half as many instructions for y and the result, 128 bytes each in bfloat16. A warp's "
    "lanes read the tile 66 vectors apart, 264 words, and meet in 4 banks: 8 passes. The tile takes 33 KB, and two "
    "blocks of 1024 threads fit on an SM as before.",
    claim="The article: 0.140 ms on an A800, 1.31 times faster than v1 and 1.16 times than torch.compile.",
    kernel=of_article("v2", "v2.cuh", elements=2),
)


# -- All accesses as wide as the alignment of every row allows, and all loads before the first wait.

WIDE: Rung[Geam] = Rung(
    name="wide",
    source=OURS,
    idea="as wide as rows allow",
    changes="Any size, stride and alignment. y and the result are accessed in vectors as wide as the alignment of "
    "every row allows (8 bytes where rows are 24300 bfloat16), x as well; all of a thread's loads are issued before "
    "anything waits. Elements of 1 or 2 bytes go through shared memory in words of 4, which a thread makes of columns "
    "side by side in its registers; columns of words are an odd number of words apart. Blocks take tiles in raster "
    "order within groups.",
    predicts="An eighth of v1's instructions for y and the result where rows start on 16 bytes, a quarter on 8. No "
    "bank conflict on reads. Bytes in flight are tile times resident blocks instead of one vector per thread: 23 KB "
    "per SM of an H200 are bandwidth times 0.7 us. Rows of an odd number of elements fall back to single elements.",
    kernel=kernel("wide", "matmill.ladders.transpose_add", "wide.cuh"),
    tune=tuned(shifted=False),
)


# -- 16-byte accesses whatever the pitch: each row's part of a tile starts where the row is aligned.

SHIFTED: Rung[Geam] = Rung(
    name="shifted",
    source=OURS,
    idea="16 bytes at any pitch",
    changes="A block's part of each row of the result is moved to the left until it starts on 16 bytes, and x is read "
    "from the 16-byte boundary before; only what sticks out of the matrix goes element by element.",
    predicts="16-byte vectors on all three sides for any pitch: twice as wide as wide's at 24300 bfloat16, eight times "
    "at odd ones. A tile needs up to 7 columns of bfloat16 more from x, which neighbouring blocks read as well: 11% of "
    "x from L2 where tiles are 64 columns wide, none of it from memory if they run at the same time.",
    kernel=kernel("shifted", "matmill.ladders.transpose_add", "shifted.cuh"),
    tune=tuned(shifted=True),
)


# -- The ladder

TRANSPOSE_ADD: tuple[Rung[Geam], ...] = (V1, V2, WIDE, SHIFTED)
