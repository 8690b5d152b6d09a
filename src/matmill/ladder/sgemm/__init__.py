"""The SGEMM ladder: C = alpha * A @ B + beta * C in float32, from three nested loops to the library's level."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.sgemm.async_copy import ASYNC_COPY
from matmill.ladder.sgemm.conflict_free import CONFLICT_FREE
from matmill.ladder.sgemm.granularity import GRANULARITY
from matmill.ladder.sgemm.ilp import ILP
from matmill.ladder.sgemm.multi import MULTI
from matmill.ladder.sgemm.naive import NAIVE
from matmill.ladder.sgemm.register_tile import REGISTER_TILE
from matmill.ladder.sgemm.shared import SHARED
from matmill.ladder.sgemm.tuned import TUNED
from matmill.ladder.sgemm.vectorized import VECTORIZED
from matmill.ladder.sgemm.volkov import VOLKOV
from matmill.ladder.sgemm.warp_tiles import WARP_TILES
from matmill.problem import Gemm

SGEMM: tuple[Rung[Gemm], ...] = (
    NAIVE,
    *MULTI,
    *SHARED,
    *GRANULARITY,
    *ILP,
    VOLKOV,
    REGISTER_TILE,
    CONFLICT_FREE,
    VECTORIZED,
    ASYNC_COPY,
    WARP_TILES,
    TUNED,
)
