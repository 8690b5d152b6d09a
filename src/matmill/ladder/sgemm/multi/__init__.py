"""Several neighbouring outputs per thread, summed up in global memory."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import S1
from matmill.ladder.packed import packed, packed_arguments, reported, tiles
from matmill.problem import Gemm

_TX, _TY = 32, 8
_MILLISECONDS = {1: 6.86, 2: 7.07, 4: 16.2, 8: 19.1}


def _predicts(multi: int) -> str:
    requests = 3 + 1 / multi
    text = (
        f"{requests:g} requests per FMA of a warp, and {8 * multi} sectors of C moved through L2: each load "
        "waits for the store before it, so the round trip to L2 sets the pace"
    )
    return f"{text}." if multi == 1 else f"{text}, and traffic to C is {multi} times that of multi(1)."


def _rung(multi: int) -> Rung[Gemm]:
    return Rung(
        name="multi",
        source=S1,
        changes=f"One thread makes {multi} neighbouring outputs of a row and adds every term to C in global memory."
        if multi > 1
        else "One output per thread, but every term is added to C in global memory instead of a register.",
        predicts=_predicts(multi),
        claim=reported(1024, {"GTX Titan X": _MILLISECONDS[multi]}),
        parameter=multi,
        kernel=Kernel(
            entry="multi",
            package=__name__,
            config=Config.of(MULTI=multi, TX=_TX, TY=_TY),
            geometry=tiles(_TY, _TX * multi, (_TX, _TY)),
            arguments=packed_arguments,
            why_not_config=packed(),
        ),
    )


MULTI: tuple[Rung[Gemm], ...] = tuple(_rung(multi) for multi in _MILLISECONDS)
