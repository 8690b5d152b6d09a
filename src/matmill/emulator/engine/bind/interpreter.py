"""Running blocks of code on a machine: each block is bound once to the lanes that execute it, and then called.

Consecutive whole warps run in place. Other sets of lanes run on copies of their rows in scratch files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.lanes import Lanes
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import Negated
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Block
from matmill.emulator.program.table import Value

Files = dict[str, Row]


class Interpreter:
    """The bound code of one machine, kept for later executions of the same blocks by the same lanes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.program = machine.program
        self.geometry = machine.geometry
        self._copy_waits = machine.copy_waits
        self._bound: dict[tuple[int, int, int], BoundBlock] = {}
        self._lanes: dict[tuple[int, int], Lanes] = {}
        self._scratch_lanes: dict[int, Lanes] = {}
        self._scratch: Files = {}
        self._scratch_bound: dict[tuple[int, int], BoundBlock] = {}
        self._touched: dict[int, tuple[Files, Files]] = {}
        every = Lanes(self.geometry, np.arange(self.geometry.warp_count), scratch=False)
        self._operands = BoundBlock(machine, Block(-1), every, machine.files)

    def begin(self, block_ids: NDArray[np.int64]) -> None:
        """Start a batch: ``block_ids`` are the numbers of its blocks in the grid."""
        self.machine.begin(block_ids)
        for lanes in (*self._lanes.values(), *self._scratch_lanes.values()):
            lanes.renew()

    def run_slice(self, block: int, first: int, last: int) -> None:
        """Run a block for all lanes of the warps from ``first`` to ``last`` (exclusive), in place."""
        bound = self._bound.get((block, first, last))
        if bound is None:
            lanes = self._lanes.get((first, last))
            if lanes is None:
                lanes = self._lanes[first, last] = Lanes(self.geometry, np.arange(first, last), scratch=False)
            files = {name: rows[:, first * LANES : last * LANES] for name, rows in self.machine.files.items()}
            bound = self._bound[block, first, last] = BoundBlock(self.machine, self.program.blocks[block], lanes, files)
        for call, arguments in bound.steps:
            call(*arguments)
        tally = self.machine.tally
        tally.block_threads[block] += (last - first) * LANES
        tally.block_warps[block] += last - first
        if self._copy_waits is not None:
            self._copy_waits.ran(block, slice(first, last))

    def run_masked(self, block: int, warps: NDArray[np.int64], active: Mask) -> None:
        """Run a block for the ``active`` lanes (bool[warps, 32]) of any warps, on copies of their rows."""
        count, whole = len(warps), self.machine.files
        lanes = self._scratch_lanes.get(count)
        if lanes is None:
            lanes = self._scratch_lanes[count] = Lanes(self.geometry, warps, scratch=True)
        lanes.choose(warps, active)
        if not self._scratch:
            self._scratch = {name: np.zeros_like(rows) for name, rows in whole.items()}
        files = {name: rows[:, : count * LANES] for name, rows in self._scratch.items()}
        reads, writes = self._rows_of(block)
        columns = lanes.columns
        for name, rows in reads.items():
            files[name][rows] = whole[name][rows[:, None], columns]
        bound = self._scratch_bound.get((block, count))
        if bound is None:
            bound = BoundBlock(self.machine, self.program.blocks[block], lanes, files)
            self._scratch_bound[block, count] = bound
        for call, arguments in bound.steps:
            call(*arguments)
        flat = active.reshape(-1)
        chosen = columns[flat]
        for name, rows in writes.items():
            whole[name][rows[:, None], chosen] = files[name][rows][:, flat]
        tally = self.machine.tally
        tally.block_threads[block] += len(chosen)
        tally.block_warps[block] += count
        if self._copy_waits is not None:
            self._copy_waits.ran(block, warps)

    def _rows_of(self, block: int) -> tuple[Files, Files]:
        """Return the rows of each file that a block reads or writes, and those that it writes."""
        known = self._touched.get(block)
        if known is None:
            known = self._touched[block] = self.program.touched_rows(block)
        return known

    def operand_row(self, value: Value, warps: NDArray[np.int64]) -> Row:
        """Return the values of an operand at the end of a block for some warps, as [warps, 32]."""
        if isinstance(value.operand, Negated):
            return np.asarray(~self.operand_row(Value(value.operand.register, value.kind), warps))
        row = self._operands.source(value)
        if not np.ndim(row):
            return np.broadcast_to(row, (len(warps), LANES))
        columns = (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)
        return np.asarray(row[columns]).reshape(-1, LANES)

    def result_row(self, value: Value) -> Row:
        """Return the row of a result operand over all columns."""
        return self._operands.result(value)
