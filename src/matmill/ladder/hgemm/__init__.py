"""The HGEMM ladder: D = alpha * A @ B + beta * C on the tensor cores, from tiles at three levels to any size.

The rungs on wgmma continue it where Hopper has instructions of its own. Their order is that of Shankhdhar's fast.cu
(2024), whose figures their predictions name.
"""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.hgemm.any_size import ANY_SIZE
from matmill.ladder.hgemm.double_buffer import DOUBLE_BUFFER
from matmill.ladder.hgemm.epilogue import EPILOGUE
from matmill.ladder.hgemm.float32_sums import FLOAT32_SUMS
from matmill.ladder.hgemm.hierarchical import HIERARCHICAL
from matmill.ladder.hgemm.multicast import MULTICAST
from matmill.ladder.hgemm.multistage import MULTISTAGE
from matmill.ladder.hgemm.persistent import PERSISTENT
from matmill.ladder.hgemm.pingpong import PINGPONG
from matmill.ladder.hgemm.prefetch import PREFETCH
from matmill.ladder.hgemm.swizzled import SWIZZLED
from matmill.ladder.hgemm.tile_shape import TILE_SHAPE
from matmill.ladder.hgemm.tma_pipeline import TMA_PIPELINE
from matmill.ladder.hgemm.tma_store import TMA_STORE
from matmill.ladder.hgemm.vectorized import VECTORIZED
from matmill.ladder.hgemm.warp_specialised import WARP_SPECIALISED
from matmill.ladder.hgemm.wgmma import WGMMA
from matmill.problem import Gemm

#: On mma.sync, for every GPU since Turing or Ampere.
ON_MMA: tuple[Rung[Gemm], ...] = (
    HIERARCHICAL,
    VECTORIZED,
    SWIZZLED,
    PREFETCH,
    TILE_SHAPE,
    DOUBLE_BUFFER,
    MULTISTAGE,
    ANY_SIZE,
    EPILOGUE,
    FLOAT32_SUMS,
)
#: On wgmma, for Hopper alone.
ON_WGMMA: tuple[Rung[Gemm], ...] = (
    WGMMA,
    TMA_PIPELINE,
    WARP_SPECIALISED,
    PERSISTENT,
    TMA_STORE,
    MULTICAST,
    PINGPONG,
)
HGEMM = (*ON_MMA, *ON_WGMMA)
