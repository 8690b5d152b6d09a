"""One output per thread, straight from global memory."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S0
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

NAIVE: Rung[Gemm] = Rung(
    name="naive",
    source=S0,
    changes="The starting point: 32x32 threads per block, one element of C per thread, A and B read from global "
    "memory at every step.",
    predicts="Two loads per FMA at one request per clock and SM, against four FMAs: at most 12.5% "
    "of the FMA peak on an SM with 128 lanes, with L1 catching the reuse.",
    claim=reported(8192, {"RTX 4090": 292}, "The source prints 1.88, counting an FMA once."),
    kernel=Kernel(
        entry="naive",
        package=__name__,
        config=Config.of(BM=32, BN=32),
        geometry=tiles(32, 32, (32, 32)),
        arguments=packed_arguments,
        why_not_config=packed(),
    ),
)
