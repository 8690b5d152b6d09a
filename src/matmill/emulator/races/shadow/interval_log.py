"""The accesses of each block's current interval, kept until a barrier of the whole block."""

from __future__ import annotations

import numpy as np

from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.races.shadow.warp_accesses import WarpAccesses

_PRUNE_ROWS = 1 << 12
_MOST_ROWS = 1 << 17


class IntervalLog:
    """Accesses in order, each warp's tagged with its block's interval; outdated ones are dropped now and then."""

    def __init__(self, warps_per_block: int) -> None:
        self._warps_per_block = warps_per_block
        self._log: list[WarpAccesses] = []
        self._rows = 0
        self._prune_at = _PRUNE_ROWS

    def append(self, rows: WarpAccesses, interval: Ints) -> bool:
        """Add ``rows``, with each block's current ``interval``; return whether the log has become too long."""
        return self.add(rows.tagged(interval[rows.warp // self._warps_per_block]), interval)

    def add(self, rows: WarpAccesses, interval: Ints) -> bool:
        """Add ``rows`` that are tagged with their blocks' intervals; return whether the log has become too long."""
        self._log.append(rows)
        self._rows += len(rows.warp)
        if self._rows > self._prune_at:
            self._prune(interval)
        return self._rows > _MOST_ROWS

    def rows_of(self, blocks: Ints, interval: Ints) -> list[WarpAccesses]:
        """Return the accesses that ``blocks`` made in their current interval."""
        wanted = np.zeros(len(interval), dtype=np.bool_)
        wanted[blocks] = True
        chosen = []
        for rows in self._log:
            block = rows.warp // self._warps_per_block
            current = wanted[block] & (rows.tag == interval[block])
            if current.any():
                chosen.append(rows.take(current))
        return chosen

    def blocks(self, interval: Ints) -> Ints:
        """Return the blocks that made an access in their current interval."""
        self._prune(interval)
        return np.unique(np.concatenate([rows.warp for rows in self._log]) // self._warps_per_block)

    def clear(self) -> None:
        """Drop everything."""
        self._log, self._rows, self._prune_at = [], 0, _PRUNE_ROWS

    def _prune(self, interval: Ints) -> None:
        """Drop accesses of past intervals; the next time is when the log has doubled."""
        self._log = self.rows_of(np.arange(len(interval)), interval)
        self._rows = sum(len(rows.warp) for rows in self._log)
        self._prune_at = max(_PRUNE_ROWS, 2 * self._rows)
