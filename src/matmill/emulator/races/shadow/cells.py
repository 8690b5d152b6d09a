"""Shadow memory: the last accesses of each cell, as many as the check of the next access needs.

A cell holds a few slots (warp, clock, lanes, instruction) each for reads, plain writes and atomics. A new access is
checked against the slots of the kinds that it conflicts with, then enters a slot of its own kind. That slot is empty,
or one that happens before the access (a later access that is unordered with the old one is unordered with the new one
too). If there is neither, two slots often suffice:

- two different blocks: no later access is ordered after both;
- two different warps of a block that has met only barriers of all its warps: a later access comes after all three, or
  is unordered with one of the two.

Otherwise another slot is added to every cell, so that nothing is forgotten.

Releases and acquires (``ordered``) break both rules, since a later access may be ordered after any two warps and not
after a third. Cells then grow to ``most`` accesses of a kind that are unordered among themselves, and drop further
ones: a race may be missed, but none is invented. There a write also replaces all reads that happen before it: an access
after an asynchronous write comes after these reads too, even if its vectors do not say so. An atomic replaces all
atomics and strong writes before it in its cell: it observed them, so that any access after it comes after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.races.order.clocks import CLOCK_BITS, HappensBefore, Ints, Lanes
from matmill.emulator.races.order.race_reports import (
    ATOMIC,
    COPY,
    KEPT_AS,
    READ,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
    CellAccesses,
    Reports,
    mark_of,
)
from matmill.emulator.races.shadow.warp_accesses import Stores, resized

# Strong accesses race only with weak ones.
_CONFLICTS = {
    READ: (WRITE, ATOMIC),
    WRITE: (WRITE, ATOMIC, READ, STRONG_READ),
    ATOMIC: (WRITE, READ),
    COPY: (WRITE, ATOMIC, READ, STRONG_READ),
    STRONG_READ: (WRITE,),
    STRONG_WRITE: (WRITE, READ),
}
_CHUNK_BITS = 12


@dataclass(slots=True)
class _Slot:
    """One remembered access per cell; key 0 and no lanes mean none."""

    keys: Ints
    lanes: NDArray[np.uint32]
    marks: NDArray[np.int32]

    @classmethod
    def empty(cls, cells: int) -> _Slot:
        return cls(np.zeros(cells, np.int64), np.zeros(cells, np.uint32), np.zeros(cells, np.int32))

    def forget(self, cells: Ints | slice) -> None:
        """Clear the slots of some cells."""
        self.keys[cells] = 0
        self.lanes[cells] = 0

    def resized(self, old: tuple[int, int], new: tuple[int, int], factor: int) -> _Slot:
        return _Slot(
            resized(self.keys, old, new, factor),
            resized(self.lanes, old, new, factor),
            resized(self.marks, old, new, factor),
        )


class Cells:
    """Shadow slots over growing rows of cells; ``general`` (bool[blocks]) disables the second rule for a block.

    ``ordered`` disables both, and keeps at most ``most`` slots of a kind.
    """

    def __init__(
        self, clocks: HappensBefore, reports: Reports, general: NDArray[np.bool_], *, ordered: bool = False,
        most: int = 8,
    ) -> None:  # fmt: skip
        self._clocks = clocks
        self._reports = reports
        self._general = general
        self._ordered = ordered
        self._most = most if ordered else 2
        self._slots: dict[str, list[_Slot]] = {READ: [], WRITE: [], ATOMIC: [], STRONG_READ: []}
        # Chunks of cells that ever had an access of each kind: most memory is only ever read.
        self._used = {kind: np.zeros(0, dtype=np.bool_) for kind in self._slots}
        # Cells with slots of two blocks, which need no more.
        self._settled = {kind: np.zeros(0, dtype=np.bool_) for kind in self._slots}
        self._shape = (0, 0)
        self._scratch = np.zeros(0, dtype=np.int64)

    def resize(self, rows: int, width: int, factor: int = 1) -> None:
        """Make room for ``rows`` rows of ``width`` cells; every old cell becomes ``factor`` cells."""
        old, self._shape = self._shape, (rows, width)
        for kind, slots in self._slots.items():
            slots[:] = [slot.resized(old, self._shape, factor) for slot in slots]
            used = np.zeros((rows * width >> _CHUNK_BITS) + 1, dtype=np.bool_)
            for slot in slots:
                used[np.flatnonzero(slot.keys) >> _CHUNK_BITS] = True
            self._used[kind] = used
            self._settled[kind] = resized(self._settled[kind], old, self._shape, factor)
        self._scratch = np.zeros(rows * width, dtype=np.int64)

    def clear(self, start: int, stop: int) -> None:
        """Remove all accesses to cells ``start`` to ``stop``."""
        for kind, slots in self._slots.items():
            self._settled[kind][start:stop] = False
            for slot in slots:
                slot.forget(np.s_[start:stop])

    def check(self, access: CellAccesses, stores: Stores | None) -> None:
        """Report the races of ``access`` with remembered accesses; ``stores`` are its values if it is a store."""
        chunks = access.cells >> _CHUNK_BITS
        for kind in _CONFLICTS[access.kind]:
            if not self._slots[kind] or not self._used[kind][chunks].any():
                continue
            for slot in self._slots[kind]:
                held = np.flatnonzero(slot.keys[access.cells])
                if not held.size:
                    continue
                second = access.take(held)
                keys = slot.keys[second.cells]
                unordered = self._clocks.conflicting(kind, keys, slot.lanes[second.cells], second.moment)
                bad = np.flatnonzero(unordered)
                if bad.size:
                    marks = slot.marks[second.cells[bad]].astype(np.int64)
                    second = second.take(bad)
                    unchanging = np.zeros(bad.size, np.bool_) if stores is None else stores.unchanging(second)
                    self._reports.remembered(keys[bad], unordered[bad], marks, kind, second, unchanging=unchanging)
                if self._ordered and access.kind == WRITE != kind:
                    slot.forget(access.cells[held[unordered == 0]])

    def has(self, kind: str) -> bool:
        """Tell whether any access of a kind was ever remembered."""
        return bool(self._slots[kind])

    def remembered(self, access: CellAccesses, kind: str) -> Iterator[tuple[CellAccesses, Ints, Lanes, Ints]]:
        """Yield remembered accesses of ``kind`` in the cells of ``access``: its entries, keys, lanes and marks."""
        for slot in self._slots[kind] if self._used[kind][access.cells >> _CHUNK_BITS].any() else ():
            held = np.flatnonzero(slot.keys[access.cells])
            if held.size:
                second = access.take(held)
                yield (
                    second,
                    slot.keys[second.cells],
                    slot.lanes[second.cells],
                    slot.marks[second.cells].astype(np.int64),
                )

    def check_together(self, access: CellAccesses, stores: Stores | None) -> None:
        """Report entries of one plain write that overlap in a cell.

        Lanes of one warp may store one value: a GPU makes exactly one of the stores (CUDA programming guide, "SIMT
        Architecture").
        """
        order = np.argsort(access.cells, kind="stable")
        met = np.flatnonzero(access.cells[order[:-1]] == access.cells[order[1:]])
        if not met.size:
            return
        one, two = order[met], order[met + 1]
        same = np.zeros(met.size, np.bool_) if stores is None else stores.alike(access, one, two)
        reported = ~same | (access.moment.warp[one] != access.moment.warp[two])
        self._reports.together(one[reported], two[reported], access, same[reported])

    def insert(self, access: CellAccesses) -> None:
        """Remember ``access``."""
        kind = KEPT_AS.get(access.kind, access.kind)
        self._used[kind][access.cells >> _CHUNK_BITS] = True
        if self._ordered and access.kind == ATOMIC:
            self._replace(access)
            return
        settled = self._settled[kind][access.cells]
        if settled.any():
            access = access.take(~settled)
        while access.cells.size:
            access = access.take(self._insert_some(kind, access))

    def _replace(self, access: CellAccesses) -> None:
        """Remember atomics in place of all that they observe; the last one in a cell has observed the others."""
        slots = self._slots[ATOMIC]
        if not slots:
            slots.append(_Slot.empty(self._scratch.size))
        cells, last = np.unique(access.cells[::-1], return_index=True)
        moment = access.moment.take(access.cells.size - 1 - last)
        slots[0].keys[cells] = moment.keys()
        slots[0].lanes[cells] = moment.bits()
        slots[0].marks[cells] = mark_of(access.where, access.kind)
        for slot in slots[1:]:
            slot.forget(cells)

    def _insert_some(self, kind: str, access: CellAccesses) -> NDArray[np.bool_]:
        """Insert at least one entry per cell; return the flags of the remaining entries."""
        slots = self._slots[kind]
        cells = access.cells
        keys = access.moment.keys()
        bits = access.moment.bits()
        mark = mark_of(access.where, access.kind)
        held = [slot.keys[cells] for slot in slots]
        target = np.full(cells.size, -1)
        left = np.ones(cells.size, dtype=np.bool_)
        lanes = [slot.lanes[cells] for slot in slots]
        after = [self._clocks.unordered(*old, access.moment) for old in zip(held, lanes, strict=True)]
        for number, slot in enumerate(slots):
            gone = after[number] == 0
            target[gone & (target < 0)] = number
            equal = (held[number] == keys) & (slot.marks[cells] == mark)
            if self._ordered:
                slot.forget(cells[gone & ~equal & (held[number] != 0)])
            same = np.flatnonzero(equal)
            np.bitwise_or.at(slot.lanes, cells[same], bits[same])
            left[same] = False
        full = np.flatnonzero(left & (target < 0))
        if full.size:
            grow = self._settle(kind, access.take(full), [each[full] for each in held], target, full)
            left[full] = grow | (target[full] >= 0)
            more = full[grow]
            # Lanes that poll a location keep the slots of all their clocks unless each drops out when it polls again.
            before = [old[more] & ~new[more] for old, new in zip(lanes, after, strict=True)]
            room = self._emptied(slots, cells[more], before) | np.isin(cells[more], cells[left & (target >= 0)])
            if not room.all():
                slots.append(_Slot.empty(self._scratch.size))
        ready = np.flatnonzero(left & (target >= 0))
        self._scratch[cells[ready]] = ready
        ready = ready[self._scratch[cells[ready]] == ready]
        for number, slot in enumerate(slots[: len(held)]):
            mine = ready[target[ready] == number]
            slot.keys[cells[mine]] = keys[mine]
            slot.lanes[cells[mine]] = bits[mine]
            slot.marks[cells[mine]] = mark
        left[ready] = False
        return left

    @staticmethod
    def _emptied(slots: list[_Slot], cells: Ints, before: list[Lanes]) -> NDArray[np.bool_]:
        """Drop the lanes of each slot that come ``before`` an entry; return which ``cells`` have an empty slot."""
        empty = np.zeros(cells.size, np.bool_)
        for slot, lanes in zip(slots, before, strict=True):
            np.bitwise_and.at(slot.lanes, cells, ~lanes)
            empty |= slot.lanes[cells] == 0
        return empty

    def _settle(self, kind: str, access: CellAccesses, held: list[Ints], target: Ints, full: Ints) -> NDArray[np.bool_]:
        """Choose slots for entries whose slots are all taken by accesses unordered with them.

        Sets ``target[full]`` to the slot to overwrite, leaves it at -1 for entries that add nothing, and returns the
        flags of those that need one more slot.
        """
        keys = access.moment.keys()
        slots = self._slots[kind]
        if len(slots) < self._most:
            return np.ones(keys.size, dtype=np.bool_)
        rest: NDArray[np.bool_] = np.ones(keys.size, dtype=np.bool_)
        if not self._ordered:
            rest = self._shortcut(access, held, target, full)
        # Within one warp and clock only the lanes matter: they join a slot, under its first instruction.
        for number, slot in enumerate(slots):
            join = np.flatnonzero(rest & (held[number] == keys))
            np.bitwise_or.at(slot.lanes, access.cells[join], access.moment.bits()[join])
            rest[join] = False
        return rest & (not self._ordered)

    def _shortcut(self, access: CellAccesses, held: list[Ints], target: Ints, full: Ints) -> NDArray[np.bool_]:
        """Apply the rules of two slots, as ``_settle`` does; return the flags of the remaining entries."""
        kind = KEPT_AS.get(access.kind, access.kind)
        warp = [(each >> CLOCK_BITS) - 1 for each in held]
        block = [each // self._clocks.warps_per_block for each in warp]
        mine = access.moment.warp // self._clocks.warps_per_block
        two_blocks: NDArray[np.bool_] = np.any([each != block[0] for each in block[1:]], axis=0)
        self._settled[kind][access.cells[two_blocks]] = True
        far = ~two_blocks & (mine != block[0])
        near = ~two_blocks & ~far & ~self._general[mine]
        two_warps = np.any([each != warp[0] for each in warp[1:]], axis=0)
        far |= near & ~two_warps & (access.moment.warp != warp[0])
        target[full[far]] = 1
        rest: NDArray[np.bool_] = ~two_blocks & ~far & ~(near & two_warps)
        return rest
