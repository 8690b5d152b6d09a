"""Vector clocks over warps, and over the lanes of a warp: happens-before inside a block.

A warp's clock counts the barriers it has met. An access is remembered as (warp, clock, lanes) and happens before what a
lane does now if some chain of barriers leads from it to that lane:

- one lane: program order;
- lanes of one warp: ``bar.warp.sync`` or any block-level barrier (since Volta, lanes may run apart);
- warps of one block: block-level barriers, which every lane of a participating warp meets;
- warps of different blocks: never.

``release_order`` adds a program's releases and acquires to this order, through ``beyond``.

As long as a block meets only barriers of all its warps, one clock per warp is enough: that of the last such barrier. A
table of warps by warps is kept from the first barrier of fewer warps until the next of all, and a table of lanes by
lanes from the first ``bar.warp.sync`` of fewer than 32 lanes until the next barrier of the whole warp. The scheme is
FastTrack's (Flanagan and Freund, PLDI 2009) with a block's warps as the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES

CLOCK_BITS = 32
CLOCK_MASK = (1 << CLOCK_BITS) - 1
LANE_BITS = np.uint32(1) << np.arange(LANES, dtype=np.uint32)

Ints = NDArray[np.int64]
Lanes = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Moment:
    """The actor and time of accesses, one entry per shadow cell: int64[e] each.

    ``warp`` is numbered through all blocks, ``clock`` is that warp's clock, and all lanes of the warp know everything
    that the warp did up to ``floor``.
    """

    warp: Ints
    lane: Ints
    clock: Ints
    floor: Ints

    def take(self, chosen: Ints | NDArray[np.bool_]) -> Moment:
        """Return the entries ``chosen`` (indices or flags)."""
        return Moment(self.warp[chosen], self.lane[chosen], self.clock[chosen], self.floor[chosen])

    def keys(self) -> Ints:
        """Return the key of each entry for a shadow slot: never 0, which marks an empty slot."""
        return (self.warp + 1) << CLOCK_BITS | self.clock

    def bits(self) -> Lanes:
        """Return each entry's lane as one bit."""
        return LANE_BITS[self.lane]


class HappensBefore(Protocol):
    """The order of accesses that shadow memory queries."""

    @property
    def warps_per_block(self) -> int:
        """The number of warps of a block, by which warps are numbered through blocks."""

    @property
    def now(self) -> Ints:
        """Each warp's clock."""

    @property
    def floor(self) -> Ints:
        """Each warp's clock up to which all its lanes know everything it did."""

    def unordered(self, keys: Ints, lanes: Lanes, moment: Moment) -> Lanes:
        """Return those of the remembered ``lanes`` that do not happen before ``moment``."""

    def conflicting(self, kind: str, keys: Ints, lanes: Lanes, moment: Moment, /) -> Lanes:
        """Return those lanes whose accesses, of ``kind`` and in conflict, race with ``moment``."""


class _Pool:
    """Square tables for those blocks or warps that currently need one."""

    def __init__(self, owners: int, side: int) -> None:
        self.row: Ints = np.full(owners, -1, dtype=np.int64)
        self.tables: Ints = np.empty((0, side, side), dtype=np.int64)
        self.in_use = 0
        self._free: list[int] = []

    def open(self, owner: int) -> Ints:
        """Return the owner's table; a new one has no order (-1)."""
        if self.row[owner] < 0:
            if not self._free:
                count = len(self.tables)
                grown = np.empty((max(4, 2 * count), *self.tables.shape[1:]), dtype=np.int64)
                grown[:count] = self.tables
                self.tables = grown
                self._free = list(range(count, len(grown)))
            self.row[owner] = self._free.pop()
            self.tables[self.row[owner]] = -1
            self.in_use += 1
        table: Ints = self.tables[self.row[owner]]
        return table

    def close(self, owners: Ints) -> None:
        """Free the tables of those ``owners`` that have one."""
        if self.in_use:
            rows = self.row[owners]
            rows = rows[rows >= 0]
            self.row[owners] = -1
            self._free += rows.tolist()
            self.in_use -= len(rows)


class Clocks:
    """The clocks of all warps of a launch, and what each knows of the others in its block.

    ``now`` is each warp's clock and ``floor`` the clock up to which all its lanes know everything it did; the tables
    add later knowledge to ``floor`` and to the last barrier of the whole block. ``beyond`` removes, from the lanes that
    nothing here orders, those that releases and acquires order: (keys, lanes, moment) to lanes.
    """

    def __init__(self, *, blocks: int, warps_per_block: int) -> None:
        self.warps_per_block = warps_per_block
        warps = blocks * warps_per_block
        self.now: Ints = np.zeros(warps, dtype=np.int64)
        self.floor: Ints = np.full(warps, -1, dtype=np.int64)
        self._seen: Ints = np.full(warps, -1, dtype=np.int64)
        self._blocks = _Pool(blocks, warps_per_block)
        self._lanes = _Pool(warps, LANES)
        self.beyond: Callable[[Ints, Lanes, Moment], Lanes] | None = None

    def block_barrier(self, blocks: Ints) -> None:
        """Let all warps of each of ``blocks`` (int64[b]) meet."""
        warps = (blocks[:, None] * self.warps_per_block + np.arange(self.warps_per_block)).ravel()
        self._seen[warps] = self.now[warps]
        self.warp_barrier(warps)
        self._blocks.close(blocks)

    def arrival(self, warp: int) -> Ints:
        """Return the clocks (int64[warps of its block]) that a warp passes on by arriving without waiting."""
        vector = self.view(warp)
        vector[warp % self.warps_per_block] = self.now[warp]
        self.now[warp] += 1
        return vector

    def partial_barrier(self, warps: Ints, arrivals: Iterable[Ints] = ()) -> None:
        """Let some warps of one block (int64[m]) meet, after the ``arrivals`` of others."""
        block = int(warps[0]) // self.warps_per_block
        first = block * self.warps_per_block
        table = self._blocks.open(block)
        local = warps - first
        joined = table[local].max(axis=0)
        joined[local] = self.now[warps]
        for vector in arrivals:
            np.maximum(joined, vector, out=joined)
        table[local] = joined
        self.warp_barrier(warps)

    def warp_barrier(self, warps: Ints) -> None:
        """Let the 32 lanes of each of ``warps`` (int64[m]) meet."""
        self.floor[warps] = self.now[warps]
        self.now[warps] += 1
        self._lanes.close(warps)

    def lane_barrier(self, warp: int, lanes: NDArray[np.bool_]) -> None:
        """Let some lanes (bool[32]) of one warp meet."""
        table = self._lanes.open(warp)
        joined = table[lanes].max(axis=0)
        joined[lanes] = self.now[warp]
        table[lanes] = joined
        self.now[warp] += 1

    def forget(self, blocks: Ints) -> None:
        """Free the tables of ``blocks`` (int64[b]), which have ended."""
        self._blocks.close(blocks)
        self._lanes.close((blocks[:, None] * self.warps_per_block + np.arange(self.warps_per_block)).ravel())

    def view(self, warp: int) -> Ints:
        """Return the clock of each warp of a block up to which all lanes of ``warp`` know it, int64[warps]."""
        block, local = divmod(warp, self.warps_per_block)
        first = block * self.warps_per_block
        view: Ints = self._seen[first : first + self.warps_per_block].copy()
        if self._blocks.row[block] >= 0:
            np.maximum(view, self._blocks.tables[self._blocks.row[block], local], out=view)
        view[local] = self.floor[warp]
        return view

    def view_of_lanes(self, warp: int, lane: int) -> Ints | None:
        """Return the clock of each lane of a warp up to which ``lane`` knows it (int64[32]), or None for the floor."""
        row = self._lanes.row[warp]
        return None if row < 0 else self._lanes.tables[row, lane].copy()

    def unordered(self, keys: Ints, lanes: Lanes, moment: Moment) -> Lanes:
        """Return those of the remembered ``lanes`` that do not happen before ``moment``: uint32[e], 0 where all do.

        ``keys`` are those of ``Moment.keys``, or 0 for an empty slot, whose ``lanes`` are 0.
        """
        warp = (keys >> CLOCK_BITS) - 1
        clock = keys & CLOCK_MASK
        same_warp = warp == moment.warp
        block = warp // self.warps_per_block
        same_block = block == moment.warp // self.warps_per_block
        known = np.where(same_warp, clock <= moment.floor, same_block & (clock <= self._seen[warp]))
        if self._blocks.in_use:
            ask = np.flatnonzero(same_block & ~same_warp & ~known & (self._blocks.row[block] >= 0))
            here, there = moment.warp[ask] % self.warps_per_block, warp[ask] % self.warps_per_block
            known[ask] = clock[ask] <= self._blocks.tables[self._blocks.row[block[ask]], here, there]
        left: Lanes = np.where(known, np.uint32(0), lanes)
        own = np.flatnonzero(same_warp & (left != 0))
        if own.size:
            left[own] &= ~LANE_BITS[moment.lane[own]]
        if own.size and self._lanes.in_use:
            ask = own[self._lanes.row[warp[own]] >= 0]
            ordered = self._lanes.tables[self._lanes.row[warp[ask]], moment.lane[ask]] >= clock[ask, None]
            left[ask] &= ~np.where(ordered, LANE_BITS, np.uint32(0)).sum(axis=1, dtype=np.uint32)
        return left if self.beyond is None else self.beyond(keys, left, moment)

    def conflicting(self, _kind: str, keys: Ints, lanes: Lanes, moment: Moment, /) -> Lanes:
        """Return ``unordered``: accesses of threads are ordered alike, whatever their kind."""
        return self.unordered(keys, lanes, moment)
