"""Flags in shared memory: loads that a loop repeats until their value changes, and what accesses the same flags.

Old code has volatile arrays in shared memory and relies on warps in lockstep, so volatile counts as plain there. A flag
is another use of it: a loop polls it, and nothing but its value ends the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matmill.emulator.frontend.syntax import Instruction, Register, Variable
from matmill.emulator.program.basic_blocks import Block

_FOLLOWED = frozenset({"mov", "cvt", "setp", "and", "or", "not", "selp", "xor"})


def flag_accesses(blocks: Sequence[Block], arrays: dict[Instruction, Variable]) -> frozenset[Instruction]:
    """Return the volatile accesses of shared memory that poll a flag or may set one.

    ``arrays`` are the variables that instructions access, where known: an access of another variable than that of any
    polled flag sets none.
    """
    polled = {i for block in blocks for i in _polled(block, blocks)}
    flags = {arrays.get(i) for i in polled}
    return frozenset(
        i
        for block in blocks
        for i in (action.instruction for action in block.actions)
        if polled and "volatile" in i.modifiers and (None in flags or arrays.get(i) in flags or i not in arrays)
    )


def _polled(block: Block, blocks: Sequence[Block]) -> Iterable[Instruction]:
    """Yield the loads and atomics of a block that decide whether it runs again with nothing stored in between."""
    back = [n for n in block.end.successors() if n <= block.number]
    stores = (
        a.instruction.name == "st" for n in back[:1] for each in blocks[n : block.number + 1] for a in each.actions
    )
    if block.end.guard is None or not back or any(stores):
        return
    wanted: set[Register] = {block.end.guard}
    for action in reversed(block.actions):
        i = action.instruction
        if wanted.isdisjoint(action.written):
            continue
        if i.name in {"ld", "atom"} and "shared" in {m.partition("::")[0] for m in i.modifiers}:
            yield i
        elif i.name in _FOLLOWED:
            wanted.update(action.read)
