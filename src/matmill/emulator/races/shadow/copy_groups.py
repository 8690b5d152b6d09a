"""``cp.async`` groups: the copies in flight, and those that a wait completes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.races.shadow.warp_accesses import WarpAccesses


class CopyQueue:
    """The copies of all warps that no wait has completed yet; the rows' ``tag`` is the number of their group."""

    def __init__(self, warps: int) -> None:
        self._committed: Ints = np.zeros(warps, dtype=np.int64)
        self._limit: Ints = np.zeros(warps, dtype=np.int64)
        self._pending: list[WarpAccesses] = []

    def issue(self, rows: WarpAccesses) -> None:
        """Add copies to the open groups of their warps."""
        self._pending.append(replace(rows, tag=self._committed[rows.warp]))

    def commit(self, warps: Ints) -> None:
        """Close the open group of each of ``warps``."""
        self._committed[warps] += 1

    def wait(self, warps: Ints, allowed: int) -> list[WarpAccesses]:
        """Remove and return the copies that complete when each of ``warps`` has at most ``allowed`` groups in flight.

        -1 waits for all copies, uncommitted ones too.
        """
        self._limit[warps] = self._committed[warps] - allowed
        completed, pending = [], []
        for rows in self._pending:
            done = rows.tag < self._limit[rows.warp]
            if done.any():
                completed.append(rows.take(done))
            if not done.all():
                pending.append(rows.take(~done))
        self._pending = pending
        self._limit[warps] = 0
        return completed

    def forget(self, warps: Ints) -> None:
        """Drop the copies of ``warps``, which have ended."""
        self.wait(warps, -1)
