"""A thread's knowledge by acquiring: a clock for each warp and lane of the launch, computed on demand."""

from __future__ import annotations

from copy import copy

import numpy as np

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import CLOCK_BITS, CLOCK_MASK, LANE_BITS, Clocks, Ints, Lanes
from matmill.emulator.races.order.releases import FENCED, Reach, Release, exceeds

_KEPT = 32


def slots_of(keys: Ints) -> tuple[Ints, Ints]:
    """Unpack the warps and clocks from ``Moment.keys``."""
    return (keys >> CLOCK_BITS) - 1, keys & CLOCK_MASK


class Horizon:
    """All that one reach covers, directly and through its snapshots.

    ``whole`` is the known clock of each warp of the launch, ``row`` its index in ``table``, which has the known clocks
    of single lanes. ``writes`` has the lanes of writes that are alone at their clocks, by the key of a shadow slot.
    ``done`` is the length to which each log was followed.
    """

    def __init__(self, reach: Reach, clocks: Clocks) -> None:
        self.reach = reach
        self._per_block = clocks.warps_per_block
        self.whole: Ints = np.full(len(clocks.now), -1, dtype=np.int64)
        self.row: Ints = np.full(len(clocks.now), -1, dtype=np.int64)
        self.table: Ints = np.empty((0, LANES), dtype=np.int64)
        self.rows = 0
        self.writes: dict[int, int] = {}
        self.done: Reach = {}
        self._follow(reach)

    def grown(self, reach: Reach) -> Horizon:
        """Return the horizon of ``reach``, which includes this one's: only releases that are new are followed."""
        other = copy(self)
        for name in ("whole", "row", "table", "writes", "done"):
            setattr(other, name, getattr(self, name).copy())
        other.grow(reach)
        return other

    def grow(self, reach: Reach) -> None:
        """Add a reach that includes the present one."""
        self.reach = reach
        self._follow(reach)

    def lanes_before(self, keys: Ints) -> Lanes:
        """Return the lanes of each slot's warp whose accesses at its clock happen before the thread's next access."""
        warp, clock = slots_of(keys)
        mask = np.where(clock <= self.whole[warp], ~np.uint32(0), np.uint32(0))
        ask = np.flatnonzero((mask == 0) & (self.row[warp] >= 0))
        if ask.size:
            later = self.table[self.row[warp[ask]]] >= clock[ask, None]
            mask[ask] = np.where(later, LANE_BITS, np.uint32(0)).sum(axis=1, dtype=np.uint32)
        if self.writes:
            distinct, back = np.unique(keys, return_inverse=True)
            alone = [self.writes.get(key, 0) for key in distinct.tolist()]
            mask |= np.array(alone, dtype=np.uint32)[back]
        return mask

    def _follow(self, reach: Reach) -> None:
        ahead, seen = [reach], {id(reach)}
        while ahead:
            for (log, part), length in ahead.pop().items():
                start = self.done.get((log, part), 0)
                if length > start:
                    self.done[log, part] = length
                    for release in log.entries[start:length]:
                        for more in self._take(release, part):
                            if more and id(more) not in seen:
                                seen.add(id(more))
                                ahead.append(more)

    def _take(self, release: Release, part: int) -> tuple[Reach, ...]:
        """Add one release; return the reaches of its snapshot."""
        snapshot = release.snapshot
        onward = (release.fenced,) if part == FENCED else ()
        if snapshot is None or (part == FENCED and not release.sc):
            return onward
        block = snapshot.warp // self._per_block
        if part >= 0 and part != block:
            return ()
        view = self.whole[block * self._per_block : (block + 1) * self._per_block]
        np.maximum(view, snapshot.view, out=view)
        lanes = self._lanes_of(snapshot.warp)
        if snapshot.lanes is not None:
            np.maximum(lanes, snapshot.lanes, out=lanes)
        own = list(release.lanes)
        lanes[own] = np.maximum(lanes[own], snapshot.clock)
        if release.write >= 0 and part != FENCED:
            key = (snapshot.warp + 1) << CLOCK_BITS | release.write
            self.writes[key] = self.writes.get(key, 0) | sum(1 << lane for lane in own)
        return (*onward, snapshot.known)

    def _lanes_of(self, warp: int) -> Ints:
        """Return the known clocks of a warp's lanes, to be changed in place."""
        row = int(self.row[warp])
        if row < 0:
            row = self.row[warp] = self.rows
            if row == len(self.table):
                self.table = np.concatenate([self.table, np.full((max(4, row), LANES), -1, dtype=np.int64)])
            self.rows += 1
        lanes: Ints = self.table[row]
        return lanes


class Horizons:
    """The last horizons, by the identity of their reaches; the newest at the end."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._kept: dict[int, Horizon] = {}

    def of(self, known: Reach) -> Horizon:
        """Return the horizon of a reach, kept for the next access by threads with the same knowledge."""
        kept = self._kept.pop(id(known), None)
        if kept is None:
            included = (each for each in reversed(self._kept.values()) if not exceeds(each.reach, known))
            before = next(included, None)
            kept = Horizon(known, self._clocks) if before is None else before.grown(known)
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]
        self._kept[id(known)] = kept
        return kept
