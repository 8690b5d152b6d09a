"""Register allocation: the row of a register file for each virtual register.

PTX assigns most registers once; a row is free again as soon as its register is dead. Live ranges are bit sets, so
whether a register fits a row is one ``and``. FMAs of a batch get consecutive rows for their sums, and each sum gets the
row of its addend if that dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from matmill.emulator.frontend.syntax import TYPE_BYTES, PtxOperand, Register, Special
from matmill.emulator.program.basic_blocks import Block, operands_of_end
from matmill.emulator.program.fma_batches import Batch
from matmill.emulator.program.in_flight import held_registers
from matmill.emulator.program.liveness import live_ranges
from matmill.emulator.program.table import registers

FILES = ("p", "16", "32", "64")
_FILE_OF_SIZE = {0: "p", 1: "16", 2: "16", 4: "32", 8: "64"}


def file_of(register: Register) -> str:
    """Return the register file of a register: predicates, 16, 32 or 64 bits."""
    return _FILE_OF_SIZE[TYPE_BYTES[register.type]]


@dataclass
class RegisterLayout:
    """Rows of registers and of special registers (in the 32-bit file), and how many rows each file has.

    ``unset`` are registers that some way through the program reads and has not written.
    """

    rows: dict[Register, int] = field(default_factory=dict)
    unset: tuple[Register, ...] = ()
    specials: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))


def lay_out(blocks: Sequence[Block], batches: dict[int, list[Batch]]) -> RegisterLayout:
    """Return rows for all registers of a program."""
    ranges, unset = live_ranges(blocks)
    # A product in flight reads and writes its registers when it takes effect, so no other register may share their
    # rows.
    always = (1 << max((r.bit_length() for r in ranges.values()), default=0)) - 1
    ranges.update(dict.fromkeys(held_registers(blocks), always))
    allocator = _RowAllocator(ranges)
    for block in blocks:
        for batch in batches.get(block.number, ()):
            allocator.batch(batch)
    for block in blocks:
        for action in block.actions:
            allocator.together(action.written)
    for register in ranges:
        allocator.single(register)
    layout = RegisterLayout(allocator.rows, tuple(sorted(unset, key=lambda r: r.name)), sizes=allocator.sizes())
    for name in sorted(_specials(blocks)):
        layout.specials[name] = layout.sizes["32"]
        layout.sizes["32"] += 1
    return layout


def _specials(blocks: Iterable[Block]) -> set[str]:
    operands: list[PtxOperand] = []
    for block in blocks:
        operands += [v.operand for action in block.actions for v in action.sources]
        operands += [v.operand for v in operands_of_end(block.end)]
    return {o.name for o in operands if isinstance(o, Special)}


class _RowAllocator:
    """Assigns rows; ``busy`` has, per file and row, the positions that are taken."""

    def __init__(self, ranges: dict[Register, int]) -> None:
        self.ranges = ranges
        self.rows: dict[Register, int] = {}
        self.busy: dict[str, list[int]] = {name: [] for name in FILES}

    def sizes(self) -> dict[str, int]:
        return {name: len(rows) for name, rows in self.busy.items()}

    def _fits(self, file: str, row: int, register: Register) -> bool:
        busy = self.busy[file]
        return row >= len(busy) or not busy[row] & self.ranges[register]

    def _take(self, file: str, row: int, register: Register) -> None:
        busy = self.busy[file]
        while row >= len(busy):
            busy.append(0)
        busy[row] |= self.ranges[register]
        self.rows[register] = row

    def single(self, register: Register) -> None:
        if register in self.rows:
            return
        file = file_of(register)
        row = next((r for r, b in enumerate(self.busy[file]) if not b & self.ranges[register]), len(self.busy[file]))
        self._take(file, row, register)

    def _take_run(self, run: Sequence[Register], wanted: int | None = None) -> None:
        """Assign consecutive rows to registers of one file, at ``wanted`` if they fit there."""
        file = file_of(run[0])
        starts = ([] if wanted is None else [wanted]) + list(range(len(self.busy[file]) + 1))
        for start in starts:
            if all(self._fits(file, start + i, r) for i, r in enumerate(run)):
                for i, register in enumerate(run):
                    self._take(file, start + i, register)
                return

    def together(self, operands: Sequence[PtxOperand]) -> None:
        """Assign consecutive rows to the results of one instruction, if none has a row yet."""
        run = registers(operands)
        fresh = all(r not in self.rows for r in run) and len({file_of(r) for r in run}) == 1
        if len(run) > 1 and len(set(run)) == len(run) and fresh:
            self._take_run(run)

    def batch(self, batch: Batch) -> None:
        """Assign consecutive rows to a batch's addends, and the same rows to its sums if the addends die."""
        for run, wanted in ((batch.addends, None), (batch.sums, batch.addends)):
            plain = registers(run)
            if len(plain) != len(run) or len(set(plain)) != len(plain) or any(r in self.rows for r in plain):
                continue
            before = registers(wanted)[:1] if wanted is not None else []
            self._take_run(plain, self.rows.get(before[0]) if before else None)
