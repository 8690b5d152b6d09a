"""Names of warps and instructions in messages about stuck warps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.basic_blocks import Block, Terminator


def who(geometry: BatchGeometry, warps: NDArray[np.bool_]) -> str:
    """Format the chosen warps of a batch: "warps 0-3 of block (5, 0, 0) (and 2 other blocks)"."""
    chosen = np.flatnonzero(warps)
    block = int(geometry.block_of_warp[chosen[0]])
    roles = sorted(int(geometry.warp_in_block[w]) for w in chosen if geometry.block_of_warp[w] == block)
    together = len(roles) > 1 and roles[-1] - roles[0] == len(roles) - 1
    span = f"{roles[0]}-{roles[-1]}" if together else ", ".join(map(str, roles))
    others = len(np.unique(geometry.block_of_warp[chosen])) - 1
    more = f" (and {others} other block{'s' if others > 1 else ''})" if others else ""
    return f"warp{'s' if len(roles) > 1 else ''} {span} of {geometry.block_name(block)}{more}"


def representative(block: Block) -> Instruction:
    """Return the instruction to name for a block of code: the wait at its end, or its first instruction."""
    if block.end.kind != "wait" and block.actions:
        return block.actions[0].instruction
    return end_instruction(block.end)


def end_instruction(end: Terminator) -> Instruction:
    """Return the instruction at the end of a block of code."""
    return end.instruction or Instruction("ret", (), (), None, negated=False, line=0, where="", text="ret;")
