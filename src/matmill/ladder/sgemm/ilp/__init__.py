"""Several rows per thread: independent sums instead of more threads (Volkov)."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S1
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

_B = 32
_MILLISECONDS = {
    1: {"GTX Titan X": 2.61, "K40": 5.18},
    2: {"GTX Titan X": 1.67, "K40": 3.46},
    4: {"GTX Titan X": 1.37, "K40": 2.73},
    8: {"GTX Titan X": 1.17, "K40": 2.53},
    16: {"GTX Titan X": 1.79, "K40": 22.89},
}


def _rung(grain: int) -> Rung[Gemm]:
    wavefronts = 0.5 + 1 / grain
    return Rung(
        name="ilp",
        source=S1,
        changes=f"Blocks of 32x{_B // grain} threads make 32x32 tiles of C; each thread owns {grain} rows, "
        f"{_B // grain} apart, and reads its word of B once for all of them."
        if grain > 1
        else "The starting point of the family: shared(32), one row per thread.",
        predicts=f"Shared wavefronts per FMA of a warp fall from 1.5 to {wavefronts:g}: at most "
        f"{1.5 / wavefronts:.3g} times shared(32), from {_B // grain} warps per block with {grain} sums each."
        if grain > 1
        else "As shared(32): 1.5 shared wavefronts per FMA of a warp.",
        claim=reported(1024, _MILLISECONDS[grain]),
        parameter=grain,
        kernel=Kernel(
            entry="ilp",
            package=__name__,
            config=Config.of(B=_B, GRAIN=grain),
            geometry=tiles(_B, _B, (_B, _B // grain)),
            arguments=packed_arguments,
            why_not_config=packed(m=_B, n=_B, k=_B),
        ),
    )


ILP: tuple[Rung[Gemm], ...] = tuple(_rung(grain) for grain in _MILLISECONDS)
