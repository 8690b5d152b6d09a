"""Accesses to the shared memory of other blocks of a cluster, which exists until the last thread of its block ends.

PTX ISA, "Shared State Space": the block that owns the memory must not have exited. So each such access must happen
before the end of some thread of the block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.races.order.race_reports import CLUSTER, Party, Reports
from matmill.emulator.races.order.thread_clocks import ThreadClocks

_EXIT = "exit"


class RemoteAccesses:
    """The accesses of other blocks to each block's shared memory: the last of each actor at each instruction."""

    def __init__(self, clocks: ThreadClocks, reports: Reports) -> None:
        self._clocks = clocks
        self._reports = reports
        # By block, instruction and actor (its column in vectors): the clock, an address and the actor as a ``Party``.
        self._last: dict[int, dict[tuple[int, int], tuple[int, int, Party]]] = {}
        self._gone: dict[int, Party] = {}

    def note(
        self, owners: Ints, warps: Ints, active: NDArray[np.bool_], addresses: Ints, *, kind: str, where: int
    ) -> None:
        """Record an access by lanes (bool[n, 32]) of warps to the memory of ``owners`` (int64[n])."""
        foreign = active & (owners != warps // self._clocks.warps_per_block)[:, None]
        for row, lane in np.argwhere(foreign).tolist():
            thread = int(warps[row]) * LANES + lane
            party = Party(thread, where, kind)
            now = int(self._clocks.clocks.now[warps[row]])
            self.note_agent(int(owners[row]), self._clocks.column_of(thread), now, int(addresses[row, lane]), party)

    def note_agent(self, owner: int, column: int, clock: int, address: int, party: Party) -> None:
        """Record an access of one actor, by its column in vectors and its clock."""
        end = self._gone.get(owner)
        if end is not None:
            self._reports.keep(CLUSTER, "shared", address, party, end)
        self._last.setdefault(owner, {})[party.where, column] = clock, address, party

    def exited(self, block: int, where: int) -> None:
        """Report accesses of others to a block's memory that do not happen before its last thread ends."""
        end = self._gone[block] = Party(block * self._clocks.warps_per_block * LANES, where, _EXIT)
        accesses = self._last.pop(block, {})
        if accesses:
            known = self._clocks.known_to(block)
            for (_, column), (clock, address, party) in accesses.items():
                if column >= len(known) or known[column] < clock:
                    self._reports.keep(CLUSTER, "shared", address, party, end)

    def release(self, blocks: Ints) -> None:
        """Drop blocks whose clusters have ended."""
        for block in np.asarray(blocks).tolist():
            self._last.pop(block, None)
            self._gone.pop(block, None)
