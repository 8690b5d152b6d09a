"""8x8 outputs per thread, held in registers."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S0
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

REGISTER_TILE: Rung[Gemm] = Rung(
    name="register-tile",
    source=S0,
    changes="Each of 16x16 threads keeps an 8x8 block of the 128x128 tile of C in registers and, per k, one column of "
    "A and one row of B.",
    predicts="16 shared reads feed 64 FMAs instead of 64 feeding 64. A's reads are 2-way and B's 4-way "
    "conflicted: 48 wavefronts where 16 would do, so at most 33% of the FMA peak on an SM with 128 lanes.",
    claim=reported(
        8192,
        {"RTX 4090": 54},
        "The source prints 10.2, counting an FMA once, and says reads of A are 2-way, of B 4-way conflicted.",
    ),
    kernel=Kernel(
        entry="register_tile",
        package=__name__,
        config=Config.of(BM=128, BN=128, BK=16, TM=8, TN=8),
        geometry=tiles(128, 128, (16, 16)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=128, k=16),
    ),
)
