"""Any m, n and k."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.pipelined import any_kernel, largest_tile
from matmill.problem import Gemm

ANY_SIZE: Rung[Gemm] = Rung(
    name="any-size",
    source=OURS,
    changes="Zeros past the ends of A and B, stores checked at those of D. Rows on 16, 8 or 4 bytes are copied by "
    "cp.async of that size, others through registers, element by element. Fragments of the next step are read ahead, "
    "and the tile is 128x256 with k 64 in four stages, or what the GPU can hold.",
    predicts="At sizes in multiples of the tile the checks cost next to nothing: they are made once per copy, not in "
    "the inner loop. Reading ahead hides the latency of ldmatrix, some 30 clocks per step.",
    kernel=any_kernel("any_size", __name__),
    tune=largest_tile,
)
