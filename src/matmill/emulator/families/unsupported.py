"""Known instructions that are not emulated: they are refused with the reason, so that a user need not look it up."""

from __future__ import annotations

from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import Action, instructions

_REASONS = {
    "tcgen05": "the tensor memory of sm_100 is not emulated",
    "multimem": "multicast memory is not emulated",
    "sured": "reductions in surfaces are not emulated",
    "alloca": "memory on the stack whose size only the run tells",
    "stacksave": "memory on the stack whose size only the run tells",
    "stackrestore": "memory on the stack whose size only the run tells",
}


@instructions(*_REASONS)
def refuse(i: Instruction) -> Action:
    """Raise ``EmulationError`` with the reason."""
    raise i.unsupported(_REASONS[i.name])
