"""The next step's tiles come to registers while this one's are multiplied."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import S2
from matmill.ladder.hgemm.common import kernel, narrow_or_wide, staged
from matmill.problem import Gemm

CONFIG = staged(BM=256, BN=128, BK=64, WARPS_M=4, WARPS_N=2)
# Half of k per step: float32 sums and the vectors of a whole step together spill on Turing.
WIDE = staged(acc16=0, BM=256, BN=128, BK=32, WARPS_M=4, WARPS_N=2)

PREFETCH: Rung[Gemm] = Rung(
    name="prefetch",
    source=S2,
    changes="Loads of the next k-tiles go to registers before the multiplications of this step and from there to "
    "shared memory after them.",
    predicts="The latency of global memory overlaps with arithmetic, for 48 registers per thread: the wait that "
    "remains is for two barriers and the stores between them.",
    claim="About 70% of cuBLAS on T4; registers go from 104 to 166.",
    kernel=kernel("prefetch", __name__, CONFIG),
    tune=narrow_or_wide(CONFIG, WIDE),
)
