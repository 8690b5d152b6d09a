"""One tile of A reused for neighbouring tiles of B (Kirk & Hwu)."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S1
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

_B = 16
_MILLISECONDS = {
    1: {"GTX Titan X": 2.65, "K40": 5.36},
    2: {"GTX Titan X": 2.10, "K40": 4.36},
    4: {"GTX Titan X": 1.89, "K40": 3.92},
}


def _rung(g: int) -> Rung[Gemm]:
    wavefronts = 1 + 0.5 / g
    return Rung(
        name="granularity",
        source=S1,
        changes=f"A block makes {g} neighbouring 16x16 tiles of C, reading its tile of A once for all of them."
        if g > 1
        else "The starting point of the family: shared(16) with one tile of C per block.",
        predicts=f"Per FMA {4 * (1 + g) / (_B * g):g} bytes from global memory instead of 0.5, and "
        f"{wavefronts:g} shared wavefronts per warp instead of 1.5: at most {1.5 / wavefronts:.3g} times shared(16)."
        if g > 1
        else "As shared(16): 0.5 bytes from global memory per FMA, 1.5 shared wavefronts per warp.",
        claim=reported(1024, _MILLISECONDS[g]),
        parameter=g,
        kernel=Kernel(
            entry="granularity",
            package=__name__,
            config=Config.of(B=_B, G=g),
            geometry=tiles(_B, _B * g, (_B, _B)),
            arguments=packed_arguments,
            why_not_config=packed(m=_B, n=_B * g, k=_B),
        ),
    )


GRANULARITY: tuple[Rung[Gemm], ...] = tuple(_rung(g) for g in _MILLISECONDS)
