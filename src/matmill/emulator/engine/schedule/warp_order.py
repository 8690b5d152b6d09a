"""The order in which runnable warps run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.lanes import BatchGeometry

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """An order of a launch's warps, of the lanes of diverged warps, and of asynchronous copies.

    Without anything else all warps run together. ``seed`` draws an order, anew at each barrier, in which some warps run
    far ahead. ``ahead`` is the warp of a thread block, numbered in the grid, that runs as far as it can, or -1 for all
    of them; after ``steps`` blocks of code it waits for all others, unless that is 0. ``late_lanes`` lets diverged
    lanes meet only where they wait for each other, and ``late_copies`` asynchronous copies act when a wait demands it.
    """

    seed: int = 0
    ahead: tuple[int, int] | None = None
    steps: int = 0
    late_lanes: bool = False
    late_copies: bool = False


class WarpOrder:
    """The priorities of a batch's warps in an order."""

    def __init__(self, geometry: BatchGeometry, order: Order) -> None:
        self.order = order
        self._geometry = geometry
        self._random = np.random.default_rng(order.seed)
        self._priority = np.zeros(geometry.warp_count, np.int64)
        self._ahead = np.zeros(geometry.warp_count, np.bool_)
        self._left = 0

    def begin(self) -> None:
        """Start a batch."""
        geometry, ahead = self._geometry, self.order.ahead
        if ahead is not None:
            block, warp = ahead
            self._ahead = geometry.block_ids[geometry.block_of_warp] == block
            self._ahead &= (geometry.warp_in_block == warp) | (warp < 0)
            self._priority = np.where(self._ahead, 0, 1)
            self._left = self.order.steps
        self.shuffle()

    def shuffle(self) -> None:
        """Draw new priorities."""
        seed = self.order.seed
        if not seed:
            return
        geometry = self._geometry
        order = self._random.permutation(geometry.warps)
        by_role = order[geometry.warp_in_block]
        if seed % 3 == 0:
            # Two halves; within each the warps stay together.
            by_role = by_role * 2 // max(geometry.warps, 1)
        blocks = self._random.permutation(geometry.blocks)[geometry.block_of_warp]
        self._priority = by_role + (blocks % 2) * geometry.warps if seed % 2 == 0 else by_role

    def foremost(self, warps: Ints) -> Ints:
        """Return those of ``warps`` that run before the others."""
        if not self.order.seed and self.order.ahead is None:
            return warps
        foremost: Ints = warps[self._priority[warps] == self._priority[warps].min()]
        if self._left and self._ahead[foremost].any():
            self._left -= 1
            if not self._left:
                self._priority[self._ahead] = 2
        return foremost
