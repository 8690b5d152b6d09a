"""Reports of races with asynchronous units, in which an agent appears as the thread that started it."""

from __future__ import annotations

import numpy as np

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import CLOCK_MASK, LANE_BITS, Moment
from matmill.emulator.races.order.race_reports import (
    MISSING_PROXY_FENCE,
    RACE,
    READ,
    STRONG_READ,
    CellAccesses,
    Party,
    Remembered,
    Reports,
)
from matmill.emulator.races.order.thread_clocks import ThreadClocks

ASYNC = "asynchronous "


class AsyncReports(Reports):
    """Reports of accesses by threads and agents."""

    def __init__(self, threads: ThreadClocks) -> None:
        super().__init__(threads.clocks)
        self._clocks = threads

    def recall(self, first: Remembered, second: CellAccesses, i: int, *, same: bool) -> None:
        """Report a race with a remembered access; between threads and agents it is one of order or of visibility."""
        then, kind = self.party(second, i), RACE
        if first.actor // LANES >= self._clocks.warps:
            issuer = self._clocks.issuer(first.actor, first.key & CLOCK_MASK)
            one = Party(issuer, first.where, ASYNC + first.kind)
        elif then.kind.startswith(ASYNC):
            one = Party(first.actor, first.where, first.kind)
            if first.kind not in (READ, STRONG_READ) and self._known(first, second.moment.take(np.array([i]))):
                kind = MISSING_PROXY_FENCE
        else:
            super().recall(first, second, i, same=same)
            return
        self.keep(kind, second.space, int(second.addresses[i]), one, then)

    def _known(self, first: Remembered, moment: Moment) -> bool:
        """Tell whether a remembered access happens before a moment, visible or not."""
        left = self._clocks.conflicting(READ, np.array([first.key]), LANE_BITS[first.lane : first.lane + 1], moment)
        return not left.any()

    def party(self, access: CellAccesses, i: int) -> Party:
        """Return the thread of entry ``i`` of an access; for an agent it is the thread that started it."""
        party = super().party(access, i)
        if party.thread // LANES < self._clocks.warps:
            return party
        issuer = self._clocks.issuer(party.thread, int(access.moment.clock[i]))
        return Party(issuer, party.where, ASYNC + party.kind)
