"""Intervals that repeat: sequences of accesses that were free of conflicts once need no second check.

Between two barriers of the whole block, whether accesses to shared memory conflict depends only on these accesses:
which lanes access which bytes, one instruction after another. Blocks repeat the same sequence, tile after tile, and
batch after batch. So the conflict-free sequences are kept as a tree: its root is the state in which no block has
accessed anything since its last barrier, its edges are accesses. While the blocks follow a known path, an access costs
one look-up. Its entry in shadow memory is deferred until it is needed, and dropped at the next barrier, after which it
no longer counts.

The tree has no copies in flight, no barriers of some of the warps, and no accesses that were checked in another way:
:meth:`IntervalPatterns.stop` leaves it until the next interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import Ints

_MOST_SHAPES = 256
_MOST_NODES = 1 << 14
_MOST_DEFERRED = 1 << 12
# New accesses without a known one among them after which a program's intervals count as not repeating.
_PATIENCE = 1 << 10


@dataclass(frozen=True, slots=True, eq=False)
class LaneOffsets:
    """Addresses of ``n`` warps relative to the lowest one, and active lanes: int64[n, 32] and bool[n, 32]."""

    distance: Ints
    active: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One instruction's plain accesses, by the lanes of ``shape``, to their blocks' shared memory from ``low`` on."""

    shape: LaneOffsets
    low: int
    kind: str
    width: int
    where: int


Node: TypeAlias = "dict[Pattern, Node]"


class IntervalPatterns:
    """The tree of clean sequences, the position of one batch's blocks in it, and their deferred accesses."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[bytes, ...], LaneOffsets] = {}
        self._patterns: dict[tuple[LaneOffsets, int, str, int, int], Pattern] = {}
        self._root: Node = {}
        self._nodes = 0
        self._node: Node | None = self._root
        self._batch: object = None
        self._patience = _PATIENCE
        self.deferred: list[tuple[Pattern, Ints]] = []

    @property
    def on(self) -> bool:
        """True while repeated intervals are looked for at all."""
        return self._patience > 0

    @property
    def followed(self) -> bool:
        """True if the accesses since the interval began are a path of the tree."""
        return self._node is not None

    def shape(self, key: tuple[bytes, ...], distance: Ints, active: NDArray[np.bool_]) -> LaneOffsets:
        """Return the shape of these distances and lanes, one object for equal ones.

        ``key`` identifies them and the warps of a batch that act.
        """
        result = self._shapes.get(key)
        if result is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._forget()
            result = LaneOffsets(distance.reshape(-1, LANES).copy(), active.reshape(-1, LANES).copy())
            self._shapes[key] = result
        return result

    def pattern(self, shape: LaneOffsets, low: int, *, kind: str, width: int, where: int) -> Pattern:
        """Return the pattern of an instruction's accesses, one object for equal ones."""
        key = (shape, low, kind, width, where)
        result = self._patterns.get(key)
        if result is None:
            result = self._patterns[key] = Pattern(shape, low, kind, width, where)
        return result

    def follow(self, pattern: Pattern, warps: Ints, batch: object) -> bool:
        """Tell whether ``warps`` (int64[n]) of a batch continue along a known path; if so, the access is deferred."""
        node = self._node
        if node is None or len(self.deferred) == _MOST_DEFERRED:
            return False
        if batch is not self._batch:
            if self._batch is not None:
                # All accesses of a path are by one batch's blocks.
                self._node = None
                return False
            self._batch = batch
        following = node.get(pattern)
        if following is None:
            self._patience -= 1
            return False
        self._patience = _PATIENCE
        self._node = following
        self.deferred.append((pattern, warps))
        return True

    def learn(self, pattern: Pattern) -> None:
        """Add the access that was just refused: it has been checked, and is free of conflicts."""
        if self._node is None or not self.on:
            return
        if self._nodes >= _MOST_NODES:
            self._forget()
            return
        self._nodes += 1
        self._node[pattern] = self._node = {}

    def stop(self) -> None:
        """Leave the tree until the next interval."""
        self._node = None

    def restart(self) -> None:
        """Return to the root: no block has accessed anything since its last barrier."""
        self._node = self._root if self.on else None
        self._batch = None

    def _forget(self) -> None:
        self._shapes.clear()
        self._patterns.clear()
        self._root = {}
        self._nodes = 0
        self._node = None
