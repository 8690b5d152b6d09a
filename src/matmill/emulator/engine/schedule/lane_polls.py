"""Conditions that single lanes wait for: a phase of an mbarrier, or the arrival of all threads of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.async_units.mbarriers import Key
from matmill.emulator.engine.bind.barrier_operand import grouped
from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.schedule.thread_names import end_instruction
from matmill.emulator.engine.state.dependent_launch import GridDependency
from matmill.emulator.frontend.syntax import TYPE_BYTES, Register
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Value
from matmill.emulator.program.waits import ClusterWait, PhaseWait

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def columns_of(warps: Ints, lanes: Flags) -> Ints:
    """Return the threads of a batch that are some ``lanes`` (bool[n, 32]) of ``warps`` (int64[n])."""
    columns: Ints = (warps[:, None] * LANES + np.arange(LANES))[lanes]
    return columns


class Polls:
    """The conditions that lanes of one machine poll, each alone, at ends of blocks whose detail is a ``Poll``."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._machine = interpreter.machine

    def completions(self) -> int:
        """Return how many conditions that lanes may poll have come true."""
        return self._machine.mbarriers.completions + self._machine.cluster.completions

    def past(self, end: Terminator, warps: Ints, lanes: Flags) -> Flags:
        """Return which of the ``lanes`` (bool[warps, 32]) need not wait."""
        past = np.zeros(lanes.shape, np.bool_)
        if not isinstance(end.detail, PhaseWait):
            past[lanes] = self._machine.cluster.past(columns_of(warps, lanes))
            return past
        result = np.zeros(int(lanes.sum()), np.bool_)
        for key, group, phases in self.barriers(end, warps, lanes):
            for phase in np.unique(phases):
                passed = self._machine.mbarriers.past(key, int(phase), end_instruction(end), parity=end.detail.parity)
                result[group[phases == phase]] = passed
        past[lanes] = result
        return past

    def barriers(self, end: Terminator, warps: Ints, lanes: Flags) -> Iterator[tuple[Key, Ints, Ints]]:
        """Yield each mbarrier that some ``lanes`` wait for, with their indices among these and the phases they name."""
        wait: PhaseWait = end.detail
        base = wait.address.base
        kind = f"u{TYPE_BYTES[base.type]}" if isinstance(base, Register) else "u8"
        row = self._interpreter.operand_row(Value(base, kind), warps)
        addresses = row[lanes].astype(np.int64) + wait.address.offset
        phases = self._interpreter.operand_row(Value(wait.phase, "u4" if wait.parity else "u8"), warps)[lanes]
        for key, group in grouped(self._machine, addresses, columns_of(warps, lanes), end_instruction(end)):
            yield key, group, phases[group].astype(np.int64)

    def count(self, end: Terminator, warps: int) -> None:
        """Count warps that execute the wait; a negative number for those that will do so again."""
        if isinstance(end.detail, PhaseWait) and self._machine.counting:
            self._machine.tally.requests(self._machine.program.index_of(end_instruction(end)), "mbarrier wait", warps)

    def finish(self, end: Terminator, warps: Ints, lanes: Flags, *, succeeds: bool) -> None:
        """End the wait of some lanes, and set their predicate to ``succeeds``."""
        if end.action is not None and end.action.results:
            self._interpreter.result_row(end.action.results[0])[columns_of(warps, lanes)] = succeeds
        if succeeds and isinstance(end.detail, ClusterWait):
            self._machine.cluster.waited(columns_of(warps, lanes))
        if succeeds and self._machine.events is not None and lanes.any():
            self._tell(end, warps, lanes)
        waits = self._machine.copy_waits
        if succeeds and waits is not None and isinstance(end.detail, PhaseWait) and lanes.any():
            for key, group, _ in self.barriers(end, warps, lanes):
                waits.go_on(key, columns_of(warps, lanes)[group] // LANES)
        if succeeds and self._machine.dependency is not None and lanes.any():
            self._come_after(self._machine.dependency, end, warps, lanes)

    def _come_after(self, dependency: GridDependency, end: Terminator, warps: Ints, lanes: Flags) -> None:
        """Let lanes come after the preceding grid if those they have waited for do."""
        columns = columns_of(warps, lanes)
        if not isinstance(end.detail, PhaseWait):
            dependency.acquire("cluster", columns)
            return
        for key, group, _ in self.barriers(end, warps, lanes):
            dependency.acquire(key, columns[group])

    def _tell(self, end: Terminator, warps: Ints, lanes: Flags) -> None:
        """Report to the race detector what lanes acquire by their wait."""
        machine, events = self._machine, self._machine.events
        if events is None:
            return
        ids = machine.warp_ids(warps)
        if not isinstance(end.detail, PhaseWait):
            events.cluster_wait(ids, lanes)
            return
        chosen = np.argwhere(lanes)
        for key, group, _ in self.barriers(end, warps, lanes):
            some = np.zeros(lanes.shape, np.bool_)
            some[tuple(chosen[group].T)] = True
            events.passed(machine.in_grid(key), ids, some, where=machine.program.index_of(end_instruction(end)))

    def describe(self, end: Terminator, warps: Ints, lanes: Flags) -> str:
        """Describe what lanes wait for, for messages."""
        if not isinstance(end.detail, PhaseWait):
            return "for its cluster"
        key, _, phases = next(self.barriers(end, warps, lanes))
        name = f"parity {phases[0]}" if end.detail.parity else f"the phase of state {phases[0]:#x}"
        return f"for {name} of the mbarrier at byte {key[1]}"
