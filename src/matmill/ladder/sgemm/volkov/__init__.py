"""A row of 64 outputs per thread in registers; only B goes through shared memory."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S0
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

VOLKOV: Rung[Gemm] = Rung(
    name="volkov",
    source=S0,
    changes="64x4 threads make a 256x64 tile of C, each owning one row x 64 columns in registers. Only B's 64x64 tile "
    "goes through shared memory (rows padded by one); A comes straight from global memory.",
    predicts="One shared wavefront per FMA of a warp, and per 64 of these one load of A that touches 32 "
    "sectors: at most 25% of the FMA peak on an SM with 128 lanes, less what A's loads take. 25.6 FLOP per byte of "
    "tile loaded.",
    claim=reported(
        8192,
        {"RTX 4090": 144},
        "The source prints 3.82 and 12.8 operations per byte, counting an FMA once.",
    ),
    kernel=Kernel(
        entry="volkov",
        package=__name__,
        config=Config.of(BM=256, BN=64, BK=64, TX=64, TY=4),
        geometry=tiles(256, 64, (64, 4)),
        arguments=packed_arguments,
        why_not_config=packed(m=256, n=64, k=64),
    ),
)
