"""The mbarriers that the lanes of a bound block refer to by an address."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.async_units.mbarriers import SIZE, Key
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import Address, Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.hazards import fault

Ints = NDArray[np.int64]


def grouped(machine: Machine, addresses: Ints, columns: Ints, i: Instruction) -> Iterator[tuple[Key, Ints]]:
    """Yield each mbarrier among ``addresses`` (one per thread of ``columns``) with the threads' indices in both.

    Raises ``KernelFault`` for an address outside the shared memory of the cluster's blocks, or off 8 bytes.
    """
    blocks, offsets = machine.shared_targets(addresses, columns)
    shared = machine.shared
    outside = (blocks < 0) | (offsets < shared.start) | (offsets > shared.end - SIZE)
    bad = np.flatnonzero(outside | (offsets % SIZE != 0))
    if len(bad):
        at = int(bad[0])
        thread = machine.geometry.thread_name(int(columns[at]))
        kind = "out-of-bounds" if outside[at] else "misaligned"
        where = machine.describe("shared", int(offsets[at]))
        raise fault(kind, f"{machine.launch.kernel}: {thread} names an mbarrier at {where}, in {i.text!r}", i)
    names = blocks * (1 << 32) + offsets
    if (names == names[:1]).all():
        groups = [np.arange(len(names))] if len(names) else []
    else:
        order = np.argsort(names, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(names[order])) + 1)
    for group in groups:
        yield (int(blocks[group[0]]), int(offsets[group[0]])), group


class BarrierOperand:
    """The address operand of an mbarrier instruction, bound to lanes."""

    def __init__(self, bound: BoundBlock, i: Instruction, address: Address) -> None:
        self._machine, self._lanes, self._i = bound.machine, bound.lanes, i
        self._participants = bound.participants()
        self._row, self._offset = bound.address_row(address)
        self._where = self._machine.program.index_of(i)

    def by_barrier(self) -> Iterator[tuple[Key, Ints]]:
        """Yield each mbarrier that lanes refer to, with these lanes."""
        lanes = np.flatnonzero(self._participants())
        addresses = np.broadcast_to(self._row, self._lanes.count)[lanes].astype(np.int64) + self._offset
        for key, group in grouped(self._machine, addresses, self._lanes.columns[lanes], self._i):
            yield key, lanes[group]

    def warps(self) -> int:
        """Return the number of warps that take part."""
        return int(self._participants().reshape(-1, LANES).any(axis=1).sum())

    def count(self, kind: str, count: int) -> None:
        """Add to the counts of the instruction."""
        if self._machine.counting:
            self._machine.tally.requests(self._where, kind, count)

    def began(self, key: Key, lanes: Ints) -> None:
        """Report a new barrier, which some lanes initialise, to the race detector."""
        events = self._machine.events
        if events is not None:
            events.init_barrier(self._machine.in_grid(key), *self._threads(lanes), where=self._where)

    def release(self, key: Key, lanes: Ints) -> None:
        """Record that some lanes arrive."""
        events, dependency = self._machine.events, self._machine.dependency
        if dependency is not None:
            dependency.release(key, self._lanes.columns[lanes])
        if events is not None:
            events.arrive(self._machine.in_grid(key), *self._threads(lanes), where=self._where)

    def acquire(self, key: Key, lanes: Ints) -> None:
        """Record that some lanes have observed the last phase as complete."""
        events, dependency = self._machine.events, self._machine.dependency
        if self._machine.copy_waits is not None:
            self._machine.copy_waits.go_on(key, self._lanes.columns[lanes] // LANES)
        if dependency is not None:
            dependency.acquire(key, self._lanes.columns[lanes])
        if events is not None and len(lanes):
            events.passed(self._machine.in_grid(key), *self._threads(lanes), where=self._where)

    def _threads(self, lanes: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        return self._machine.threads(self._lanes.columns[lanes])


def of_lane(row: Row, lane: int) -> int:
    """Return one lane's value of a row, or the scalar that all lanes share."""
    return int(row[lane] if np.ndim(row) else row)
