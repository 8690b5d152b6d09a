"""Two shared buffers and one barrier per step."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S2
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4, stages=2)

DOUBLE_BUFFER: Rung[Gemm] = Rung(
    name="double-buffer",
    source=S2,
    changes="Shared memory holds two tiles of A and of B: while one is multiplied, the next is stored into the other.",
    predicts="One barrier per step instead of two, and warps that are done store their tiles while others still "
    "multiply. 64 KB of shared memory, all that Turing has.",
    claim="At 8192: 96% of cuBLAS on T4.",
    kernel=kernel("double_buffer", __name__, CONFIG),
    tune=narrow_or_wide(CONFIG),
)
