"""Races in reports, one per pair of instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import CLOCK_BITS, Clocks, Lanes, Moment

READ, WRITE, ATOMIC, COPY = "read", "write", "atomic", "copy"
STRONG_READ, STRONG_WRITE = "strong read", "strong write"
# The kinds that shadow memory stores together with accesses of another kind.
KEPT_AS = {COPY: WRITE, STRONG_WRITE: ATOMIC}
_GUESTS = {kept: kind for kind, kept in KEPT_AS.items()}
RACE, SAME_VALUE, MISSING_WAIT = "race", "same-value", "missing-wait"
MISSING_PROXY_FENCE, CLUSTER, MBARRIER = "missing-proxy-fence", "cluster", "mbarrier"
_WRITES = (WRITE, STRONG_WRITE)
LIMIT = 1000

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Race:
    """Two unordered accesses to the same bytes, at least one of them a plain write.

    ``space`` is "shared" (``address``: a byte offset in the block's window) or "global" (a 64-bit virtual address);
    ``block`` is the second access's block. ``kind`` is "race", "same-value" (two stores of the same bytes),
    "missing-wait" (a thread accesses bytes that its own ``cp.async`` may still be writing), "missing-proxy-fence" (the
    second access comes after the first, but in another proxy), "cluster" (the first accesses the memory of a block
    whose last thread may have ended; ``second_kind`` is "exit"), or "mbarrier" (the first initialises the mbarrier that
    the second uses). ``first_where`` and ``second_where`` are instruction indices in the order of emulation,
    ``first_kind`` and ``second_kind`` "read", "write", "atomic", "copy" (``cp.async``), "strong read", "strong write",
    "asynchronous read" or "asynchronous write" by an operation that the thread has issued, or in words; threads are
    (block, thread in block).
    """

    space: str
    address: int
    block: int
    kind: str
    first_where: int
    second_where: int
    first_kind: str
    second_kind: str
    first_thread: tuple[int, int]
    second_thread: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"{self.kind} in {self.space} memory at {self.address:#x}: {self.first_kind} by thread "
            f"{self.first_thread[1]} of block {self.first_thread[0]} (instruction {self.first_where}) and "
            f"{self.second_kind} by thread {self.second_thread[1]} of block {self.second_thread[0]} "
            f"(instruction {self.second_where})"
        )


@dataclass(frozen=True, slots=True)
class CellAccesses:
    """The accesses of one instruction to shadow cells: int64[e] cells of ``unit`` bytes, byte addresses, moments."""

    space: str
    kind: str
    where: int
    unit: int
    cells: Ints
    addresses: Ints
    moment: Moment

    def take(self, chosen: Ints | NDArray[np.bool_]) -> CellAccesses:
        """Return the entries ``chosen`` (indices or flags)."""
        cells, addresses = self.cells[chosen], self.addresses[chosen]
        return CellAccesses(self.space, self.kind, self.where, self.unit, cells, addresses, self.moment.take(chosen))


@dataclass(frozen=True, slots=True)
class Remembered:
    """An access of one lane in a shadow slot: the slot's key, and the contents of its mark."""

    key: int
    lane: int
    where: int
    kind: str

    @property
    def actor(self) -> int:
        """The access's thread, numbered through blocks, or its agent."""
        return ((self.key >> CLOCK_BITS) - 1) * LANES + self.lane


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a race: a thread (numbered through blocks), its instruction and the kind of its access."""

    thread: int
    where: int
    kind: str


class Reports:
    """The first race of every pair of instructions, at most ``LIMIT`` pairs."""

    def __init__(self, clocks: Clocks) -> None:
        self._threads = clocks.warps_per_block * LANES
        self._races: dict[tuple[str, str, int, int], Race] = {}

    def races(self) -> list[Race]:
        """Return the races, oldest first; for stores of one value only those that never store different ones."""
        return [
            race
            for (space, kind, *pair), race in self._races.items()
            if kind != SAME_VALUE or (space, RACE, *pair) not in self._races
        ]

    def remembered(
        self, keys: Ints, lanes: Lanes, marks: Ints, kind: str, second: CellAccesses, *, unchanging: NDArray[np.bool_]
    ) -> None:
        """Report races of ``second`` with accesses in shadow slots: keys, unordered lanes, marks (``mark_of``).

        ``unchanging`` are the entries of ``second`` that store the value that is there already.
        """
        for mark in np.unique(marks).tolist():
            first_kind = _GUESTS[kind] if mark & 1 else kind
            same = unchanging & (first_kind in _WRITES)
            for i in _first_of_each(marks == mark, same):
                bits = int(lanes[i])
                lane = (bits & -bits).bit_length() - 1
                self.recall(Remembered(int(keys[i]), lane, mark >> 1, first_kind), second, i, same=bool(same[i]))

    def recall(self, first: Remembered, second: CellAccesses, i: int, *, same: bool) -> None:
        """Report a race of entry ``i`` of ``second`` with an access in a shadow slot."""
        self.add(first.actor, first.where, first.kind, second, i, same=same)

    def together(self, one: Ints, two: Ints, access: CellAccesses, same: NDArray[np.bool_]) -> None:
        """Report that entries ``one`` and ``two`` (int64[p]) of one store overlap; ``same`` tells which are equal."""
        for i in _first_of_each(np.ones(len(one), np.bool_), same):
            first = int(access.moment.warp[one[i]]) * LANES + int(access.moment.lane[one[i]])
            self.add(first, access.where, access.kind, access, int(two[i]), same=bool(same[i]))

    def add(
        self, first_thread: int, first_where: int, first_kind: str, second: CellAccesses, i: int, *, same: bool = False
    ) -> None:
        """Report a race of entry ``i`` of ``second`` with an earlier access by one thread (numbered through blocks)."""
        first, then = Party(first_thread, first_where, first_kind), self.party(second, i)
        kind = MISSING_WAIT if then.thread == first_thread else SAME_VALUE if same else RACE
        self.keep(kind, second.space, int(second.addresses[i]), first, then)

    def party(self, access: CellAccesses, i: int) -> Party:
        """Return the thread of entry ``i`` of an access."""
        thread = int(access.moment.warp[i]) * LANES + int(access.moment.lane[i])
        return Party(thread, access.where, access.kind)

    def keep(self, kind: str, space: str, address: int, first: Party, second: Party) -> None:
        """Add a race unless its kind and instructions are in the list."""
        name = (space, kind, first.where, second.where)
        if name in self._races or len(self._races) >= LIMIT:
            return
        self._races[name] = Race(
            space=space,
            address=address,
            block=second.thread // self._threads,
            kind=kind,
            first_where=first.where,
            second_where=second.where,
            first_kind=first.kind,
            second_kind=second.kind,
            first_thread=divmod(first.thread, self._threads),
            second_thread=divmod(second.thread, self._threads),
        )


def _first_of_each(chosen: NDArray[np.bool_], same: NDArray[np.bool_]) -> list[int]:
    """Return the first of the ``chosen`` entries that is ``same``, and the first that is not."""
    return [int(positions[0]) for positions in map(np.flatnonzero, (chosen & ~same, chosen & same)) if positions.size]


def mark_of(where: int, kind: str) -> int:
    """Pack an instruction's index, and whether its access is stored with those of another kind, into one integer."""
    return where << 1 | (kind in KEPT_AS)
