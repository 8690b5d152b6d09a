"""Instructions that are known and not emulated: refused with the reason, so that a user need not look them up."""

from __future__ import annotations

from typing import NoReturn

from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import Action, instructions

_MBARRIERS = "an mbarrier, which is not emulated yet"
_CLUSTERS = "thread block clusters are not emulated yet"
_TEXTURES = "textures and surfaces are not emulated"
_REASONS = {
    "wmma": "its fragments have no documented layout; write mma.sync and ldmatrix instead",
    "mbarrier": _MBARRIERS,
    "tcgen05": "the tensor memory of sm_100 is not emulated",
    "mapa": _CLUSTERS,
    "getctarank": _CLUSTERS,
    "multimem": "multicast memory is not emulated",
    "tensormap": "TMA is not emulated yet",
    "tex": _TEXTURES,
    "tld4": _TEXTURES,
    "txq": _TEXTURES,
    "suld": _TEXTURES,
    "sust": _TEXTURES,
    "sured": _TEXTURES,
    "suq": _TEXTURES,
    "alloca": "memory on the stack whose size only the run tells",
    "stacksave": "memory on the stack whose size only the run tells",
    "stackrestore": "memory on the stack whose size only the run tells",
}


@instructions(*_REASONS)
def refuse(i: Instruction) -> Action:
    """Raise ``EmulationError`` with the reason."""
    raise i.unsupported(_REASONS[i.name])


def refuse_copy(i: Instruction) -> NoReturn:
    """Raise for the forms of ``cp`` that are no ``cp.async`` of single threads."""
    if "mbarrier" in i.modifiers:
        raise i.unsupported(_MBARRIERS)
    raise i.unsupported("a bulk copy (TMA), which is not emulated yet")
