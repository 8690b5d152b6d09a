"""One output per thread, straight from global memory."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung, always
from matmill.ladder.documents import S0
from matmill.ladder.sgemm.common import packed_arguments, tiles
from matmill.problem import Gemm

NAIVE: Rung[Gemm] = Rung(
    name="naive",
    source=S0,
    changes="The starting point: 32x32 threads per block, one element of C per thread, A and B read from global "
    "memory at every step.",
    predicts="Two loads per multiply-add, so the load units set the pace: a few per cent of the FMA peak.",
    claim="292 ms at 8192 on an RTX 4090",
    kernel=Kernel(
        entry="naive",
        package=__name__,
        config=Config.of(BM=32, BN=32),
        geometry=tiles(32, 32, (32, 32)),
        arguments=packed_arguments,
        legality=always,
    ),
)
