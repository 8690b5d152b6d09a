"""setmaxnreg: a warpgroup takes registers from its block's pool, or returns some. It changes no values."""

from __future__ import annotations

from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.program.table import Action, Call, Modifiers, instructions

_FEWEST, _MOST, _UNIT = 24, 256, 8


@instructions("setmaxnreg", operands=(1,))
def set_registers(i: Instruction) -> Action:
    """Bind ``setmaxnreg.inc`` and ``setmaxnreg.dec`` with a literal count of registers per thread."""
    m = Modifiers(i, "sync", "aligned")
    grows = m.need("inc", "dec") == "inc"
    m.type("u32")
    m.done()
    (operand,) = i.operands
    count = int(operand.value) if isinstance(operand, Immediate) else 0
    if not _FEWEST <= count <= _MOST or count % _UNIT:
        raise i.unsupported(f"a count that is no multiple of {_UNIT} from {_FEWEST} to {_MOST}")

    def bind(bound: BoundBlock) -> Call:
        whole, lanes, machine = bound.whole_warps(i), bound.lanes, bound.machine

        def call() -> None:
            if whole is not None:
                whole()
            machine.products.warpgroups.executed(lanes.warps, i)
            machine.registers.change(lanes.warps, i, count, grows=grows)

        return call

    return Action(i, bind=bind, tally="control", collective=True)
