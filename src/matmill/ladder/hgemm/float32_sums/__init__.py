"""Sums in float32, and the tile that fits the problem."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.pipelined import any_kernel, best_tile
from matmill.problem import Gemm

FLOAT32_SUMS: Rung[Gemm] = Rung(
    name="float32-sums",
    source=OURS,
    changes="Sums are float32. Blocks take the tiles of D in groups of 8 rows of tiles, and the tile is chosen by the "
    "size of the problem, so that a small one occupies the whole GPU.",
    predicts="The rounding error falls from that of float16, which grows with k, to one rounding of the result. "
    "Data-centre GPUs multiply as fast as with float16 sums, GeForce at half the rate.",
    kernel=any_kernel("float32_sums", __name__, banded=True),
    tune=best_tile,
)
