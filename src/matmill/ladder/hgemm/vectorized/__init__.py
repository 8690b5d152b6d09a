"""Sixteen bytes per copy, and all copies of a step in flight."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S2
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)

VECTORIZED: Rung[Gemm] = Rung(
    name="vectorized",
    source=S2,
    changes="Copies from global to shared memory move 16 bytes per thread, in loops whose length the compiler knows: "
    "all loads of a step are issued before the first is stored.",
    predicts="An eighth of the copy instructions, and 12 loads in flight per thread instead of about one: the wait "
    "for global memory shrinks about as much, and conflicts of ldmatrix become the limit.",
    claim="About 3 times the first rung, on T4.",
    kernel=kernel("vectorized", __name__, CONFIG),
    tune=narrow_or_wide(CONFIG),
)
