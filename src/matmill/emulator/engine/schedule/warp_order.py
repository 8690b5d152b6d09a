"""The order in which runnable warps run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.lanes import BatchGeometry

Ints = NDArray[np.int64]


class WarpOrder:
    """The priorities of a batch's warps: with ``schedule`` 0 all run together, else some run far ahead of others."""

    def __init__(self, geometry: BatchGeometry, schedule: int) -> None:
        self.schedule = schedule
        self._geometry = geometry
        self._random = np.random.default_rng(schedule)
        self._priority = np.zeros(geometry.warp_count, np.int64)

    def shuffle(self) -> None:
        """Draw new priorities."""
        if not self.schedule:
            return
        geometry = self._geometry
        order = self._random.permutation(geometry.warps)
        by_role = order[geometry.warp_in_block]
        if self.schedule % 3 == 0:
            # Two halves; within each the warps stay together.
            by_role = by_role * 2 // max(geometry.warps, 1)
        blocks = self._random.permutation(geometry.blocks)[geometry.block_of_warp]
        self._priority = by_role + (blocks % 2) * geometry.warps if self.schedule % 2 == 0 else by_role

    def foremost(self, warps: Ints) -> Ints:
        """Return those of ``warps`` that run before the others."""
        if not self.schedule:
            return warps
        priority = self._priority[warps]
        foremost: Ints = warps[priority == priority.min()]
        return foremost
