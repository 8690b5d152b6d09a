"""The paper's BasicMM: one parallel inner product per output, a contiguous segment of k per thread."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Rung
from matmill.ladder.documents import S3
from matmill.ladder.inner.common import any_size_arguments, atomic_kernel, resident_grid, takes
from matmill.problem import Gemm

BASIC: Rung[Gemm] = Rung(
    name="basic",
    source=S3,
    changes="Each of the m * n outputs is an inner product by all GS * BS threads: a contiguous segment of k per "
    "thread, a tree in shared memory per block, one atomic add per block.",
    predicts="E is read n times and F m times: 2mn / (m + n) times the least, which is m where m = n. Lanes read "
    "k / (GS * BS) elements apart, 32 sectors per request where 4 would do, so that a float32 costs up to 8 times its "
    "bytes unless L1 keeps 2048 threads' sectors (2 * 32 B each, 128 KiB) until they are used up. m * n * GS atomics.",
    claim="S3: the starting point that PHVM improves on, on RTX 2080 Ti and A100; no time of its own is kept here. Its "
    "MTXC (7 x 2e9 x 7 in float32, 112 GB) cannot have run on the A100 with 40 GB: 2e8 is meant, most likely.",
    kernel=atomic_kernel("basic", __name__, Config.of(BS=256, GS=1056), any_size_arguments, takes),
    tune=resident_grid,
)
