"""The article's first kernel: X in 16-byte vectors, Y and D element by element."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S4
from matmill.ladder.transpose_add.common import of_article
from matmill.problem import Geam

V1: Rung[Geam] = Rung(
    name="v1",
    source=S4,
    changes="A block of 32 x 32 threads transposes 32 x 32 vectors of 16 bytes of x in shared memory; y and the result "
    "are read and written element by element.",
    predicts="One pass, every byte once. A warp's access to y or the result is 32 elements: 64 bytes of bfloat16 where "
    "512 would fit in one instruction. A warp reads the tile at a distance of 33 vectors: 132 words, so that "
    "32 lanes meet in 8 banks, 4 passes where one would do.",
    claim="S4: 0.183 ms on an A800 against 0.498 ms in eager PyTorch and 0.162 ms with torch.compile. The times cannot "
    "belong to the shape named (1.68 GB in 0.140 ms would be 12 TB/s on a GPU with 2.0); the ratios are what counts.",
    kernel=of_article("v1", __name__, elements=1),
)
