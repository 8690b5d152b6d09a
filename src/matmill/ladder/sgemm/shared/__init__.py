"""Square tiles of both inputs staged in shared memory."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S1
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

_MILLISECONDS = {
    8: {"GTX Titan X": 3.07, "K40": 8.20, "C2070": 20.0},
    16: {"GTX Titan X": 2.65, "K40": 5.30, "C2070": 12.1},
    32: {"GTX Titan X": 2.67, "K40": 5.18, "C2070": 12.2},
}
_FORUM = " S0, same kernel: " + reported(
    8192,
    {"RTX 4090": 324},
    "It prints 1.70, counting an FMA once, and suspects a 32-way bank conflict on the A tile.",
)


def _rung(b: int) -> Rung[Gemm]:
    return Rung(
        name="shared",
        source=S1,
        changes=f"Blocks of {b}x{b} threads stage {b}x{b} tiles of A and B in shared memory, two barriers per step.",
        predicts=f"Global loads fall from 8 to {8 / b:g} bytes per FMA; shared reads replace them, at "
        "1.5 wavefronts per FMA of a warp (the compiler merges four reads of A into one of 2 wavefronts) and "
        "no bank conflict: at most 17% of the FMA peak on an SM with 128 lanes.",
        claim=reported(1024, _MILLISECONDS[b]) + (_FORUM if b == 32 else ""),
        parameter=b,
        kernel=Kernel(
            entry="shared",
            package=__name__,
            config=Config.of(B=b),
            geometry=tiles(b, b, (b, b)),
            arguments=packed_arguments,
            why_not_config=packed(m=b, n=b, k=b),
        ),
    )


SHARED: tuple[Rung[Gemm], ...] = tuple(_rung(b) for b in _MILLISECONDS)
