"""Live ranges: where each register's value is still needed, and which registers a call must save.

They are bit sets over program positions, two per instruction: it reads, then writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matmill.emulator.frontend.syntax import Register
from matmill.emulator.program.basic_blocks import Block, CallSite, operands_of_end
from matmill.emulator.program.table import registers


def live_ranges(blocks: Sequence[Block]) -> tuple[dict[Register, int], set[Register]]:
    """Return for each register the set of positions at which it needs its row, as bits; and those live at the start."""
    live_in, live_out = live_sets(blocks, [block.end.successors() for block in blocks])
    ranges: dict[Register, int] = {}
    position = 0
    for block in blocks:
        position = _BlockRanges(ranges, position).block(block, live_in[block.number], live_out[block.number])
    return ranges, live_in[0]


def reached_by(blocks: Sequence[Block], unset: Iterable[Register]) -> set[Register]:
    """Return the registers to which values of ``unset`` ones may come, by whatever way, through memory too."""
    reached, before = set(unset), -1
    actions = [action for block in blocks for action in block.actions]
    while len(reached) > before:
        before = len(reached)
        touched = [action for action in actions if not reached.isdisjoint(action.read)]
        stored = any(action.instruction.name == "st" for action in touched)
        for action in (*touched, *(a for a in actions if stored and a.instruction.name == "ld")):
            reached.update(action.written)
    return reached


def keep_registers(blocks: Sequence[Block], stack: Register) -> None:
    """Set the registers that each call must save: its function uses them afterwards, and calls inside it change them.

    So only recursive functions have any. The stack pointer is restored anyway.
    """
    live_in, _ = live_sets(blocks, [_in_function(block) for block in blocks])
    inside: dict[int, set[Register]] = {}
    for block in blocks:
        site = block.end.detail
        if isinstance(site, CallSite):
            for first in block.end.table:
                if first not in inside:
                    inside[first] = _written_from(blocks, first)
            changed = set().union(*(inside[first] for first in block.end.table)) - {stack}
            site.kept = tuple(sorted(live_in[block.end.next] & changed, key=lambda r: (r.type, r.name)))


def _in_function(block: Block) -> list[int]:
    """Return the blocks of the same function that may follow."""
    end = block.end
    if end.kind in {"call", "return"}:
        return [end.next] if end.next >= 0 else []
    return end.successors()


def _written_from(blocks: Sequence[Block], first: int) -> set[Register]:
    """Return the registers that a call of the function at a block may write, nested calls included."""
    result: set[Register] = set()
    seen = {first}
    waiting = [first]
    while waiting:
        block = blocks[waiting.pop()]
        result.update(r for action in block.actions for r in action.written)
        result.update(_end_results(block))
        following = [*_in_function(block), *(block.end.table if block.end.kind == "call" else ())]
        waiting += [n for n in following if n not in seen]
        seen.update(following)
    return result


def live_sets(
    blocks: Sequence[Block], successors: Sequence[Sequence[int]]
) -> tuple[list[set[Register]], list[set[Register]]]:
    """Return the registers that are live before each block and after it. Blocks in ``successors`` may follow."""
    live_in: list[set[Register]] = [set() for _ in blocks]
    upward, killed = [], []
    for block in blocks:
        reads: set[Register] = set()
        writes: set[Register] = set()
        for action in block.actions:
            reads.update(r for r in action.read if r not in writes)
            writes.update(action.written)
        reads.update(r for r in _end_uses(block) if r not in writes)
        writes.update(_end_results(block))
        upward.append(reads)
        killed.append(writes)
    live_out: list[set[Register]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            n = block.number
            out: set[Register] = set()
            for successor in successors[n]:
                out |= live_in[successor]
            new = upward[n] | (out - killed[n])
            if new != live_in[n] or out != live_out[n]:
                live_in[n], live_out[n], changed = new, out, True
    return live_in, live_out


def _end_uses(block: Block) -> list[Register]:
    return registers(v.operand for v in operands_of_end(block.end))


def _end_results(block: Block) -> tuple[Register, ...]:
    return block.end.action.written if block.end.action is not None else ()


class _BlockRanges:
    """The live ranges inside one block: where each register's present value began, and its last use."""

    def __init__(self, ranges: dict[Register, int], position: int) -> None:
        self.ranges = ranges
        self.position = position
        self.began: dict[Register, int] = {}
        self.last: dict[Register, int] = {}

    def _extend(self, register: Register, first: int, last: int) -> None:
        self.ranges[register] = self.ranges.get(register, 0) | ((1 << (last - first + 1)) - 1) << first

    def _use(self, register: Register) -> None:
        self.began.setdefault(register, self.position)
        self.last[register] = self.position

    def _define(self, register: Register, at: int) -> None:
        """Begin a new value at position ``at``; the old one's range ends at its last use."""
        if register in self.began:
            first = self.began[register]
            self._extend(register, first, max(first, self.last.get(register, first)))
        self.began[register] = at
        self.last[register] = self.position + 1

    def block(self, block: Block, live_in: set[Register], live_out: set[Register]) -> int:
        """Add the block's live ranges; return the position after it."""
        self.began = dict.fromkeys(live_in, self.position)
        for action in block.actions:
            for register in action.read:
                self._use(register)
            for register in action.written:
                if action.instruction.guard is not None:
                    # The old value remains where the guard does not hold, so its range continues.
                    self.last[register] = self.position + 1
                else:
                    self._define(register, self.position + action.in_place)
            self.position += 2
        for register in _end_uses(block):
            self._use(register)
        for register in _end_results(block):
            self._define(register, self.position)
        for register, first in self.began.items():
            end = self.position + 1 if register in live_out else self.last.get(register, first)
            self._extend(register, first, max(first, end))
        return self.position + 2
