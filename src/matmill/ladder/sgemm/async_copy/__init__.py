"""Tiles that arrive while others compute: cp.async and two shared buffers."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import OURS
from matmill.ladder.packed import packed, packed_arguments, tiles
from matmill.problem import Gemm

ASYNC_COPY: Rung[Gemm] = Rung(
    name="async-copy",
    source=OURS,
    changes="Tiles go from global to shared memory by cp.async, without passing through registers, into one of two "
    "buffers while the other is computed on. One barrier per step instead of two. The A tile is transposed by copying "
    "it word by word.",
    predicts="The wait for global memory, some 600 cycles per step against 512 of FMA issue per warp scheduler, "
    "disappears behind the arithmetic; registers that held tiles in flight are free.",
    kernel=Kernel(
        entry="async_copy",
        package=__name__,
        config=Config.of(BM=128, BN=128, BK=8, TM=8, TN=8),
        geometry=tiles(128, 128, (16, 16)),
        arguments=packed_arguments,
        why_not_config=packed(m=128, n=128, k=8),
    ),
)
