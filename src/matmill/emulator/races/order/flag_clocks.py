"""Flags in memory that pass on what threads know of asynchronous units.

``release_order`` orders threads by releases and acquires. The vectors of ``thread_clocks`` must follow, because only
they include agents and visibility to these. A location has the vectors that its release sequence released; a thread
that acquires it, directly or by a fence after a read, joins them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.races.order.race_reports import READ, WRITE
from matmill.emulator.races.order.thread_clocks import ThreadClocks, Vectors, joined

#: The location: a cluster, one of its blocks (-1 for global memory) and an address.
_Location: TypeAlias = tuple[int, int, int]
_Thread: TypeAlias = tuple[int, int]
Flags = NDArray[np.bool_]


@dataclass
class _Sequence:
    """The releases of one location's writes; the last write was by ``block``, ``wide`` in a scope beyond that block."""

    vectors: Vectors
    block: int
    wide: bool


class FlagClocks:
    """The locations of one launch that have releases, and the threads that have fenced or read them."""

    def __init__(self, clocks: ThreadClocks) -> None:
        self._clocks = clocks
        self._held: dict[_Location, _Sequence] = {}
        self._fenced: dict[_Thread, Vectors] = {}
        self._read: dict[_Thread, Vectors] = {}

    def fence(self, warps: Ints, lanes: Flags, ordering: Ordering) -> None:
        """Record a fence by ``lanes`` (bool[n, 32]) of ``warps``, before their clocks advance."""
        for row, lane in np.argwhere(lanes).tolist():
            thread = int(warps[row]), lane
            if ordering.acquire and thread in self._read:
                self._acquire(thread, self._read.pop(thread))
            if ordering.release:
                self._fenced[thread] = self._released(thread)

    def access(
        self, space: str, *, warp: Ints, addresses: Ints, active: Flags, kind: str, ordering: Ordering, owners: Ints
    ) -> None:
        """Record strong accesses by lanes in their order, before the warps' clocks advance."""
        per_block = self._clocks.warps_per_block
        for row, lane in np.argwhere(active).tolist():
            thread, block = (int(warp[row]), lane), int(warp[row]) // per_block
            cluster = int(self._clocks.cluster_of_block[block])
            location = cluster, int(owners[row]) if space == "shared" else -1, int(addresses[row, lane])
            held = self._held.get(location)
            if held is not None and held.block != block and not (held.wide and ordering.wide):
                held = None
            if kind != WRITE and held is not None:
                if ordering.acquire:
                    self._acquire(thread, held.vectors)
                else:
                    earlier = self._read.get(thread)
                    self._read[thread] = held.vectors if earlier is None else joined(earlier, held.vectors)
            if kind != READ:
                self._write(location, thread, None if kind == WRITE else held, ordering)

    def overwrite(self, space: str, *, warp: Ints, addresses: Ints, active: Flags, owners: Ints) -> None:
        """Record plain writes, which end the release sequences that they overwrite."""
        for row, lane in np.argwhere(active).tolist() if self._held else ():
            cluster = int(self._clocks.cluster_of_block[int(warp[row]) // self._clocks.warps_per_block])
            self._held.pop((cluster, int(owners[row]) if space == "shared" else -1, int(addresses[row, lane])), None)

    def release(self, clusters: set[int], warps: set[int]) -> None:
        """Drop clusters that have ended, and their warps."""
        self._held = {name: each for name, each in self._held.items() if name[0] not in clusters}
        for kept in (self._fenced, self._read):
            for thread in [thread for thread in kept if thread[0] in warps]:
                del kept[thread]

    def _write(self, location: _Location, thread: _Thread, held: _Sequence | None, ordering: Ordering) -> None:
        vectors = self._released(thread) if ordering.release else self._fenced.get(thread)
        if held is not None:
            vectors = held.vectors if vectors is None else joined(held.vectors, vectors)
        if vectors is None:
            self._held.pop(location, None)
        else:
            self._held[location] = _Sequence(vectors, thread[0] // self._clocks.warps_per_block, ordering.wide)

    def _released(self, thread: _Thread) -> Vectors:
        return self._clocks.released(*_alone(thread))

    def _acquire(self, thread: _Thread, vectors: Vectors) -> None:
        self._clocks.acquire(vectors, *_alone(thread))


def _alone(thread: _Thread) -> tuple[Ints, Flags]:
    """Return one thread as warps and lanes."""
    warp, lane = thread
    return np.array([warp]), (np.arange(LANES) == lane)[None]
