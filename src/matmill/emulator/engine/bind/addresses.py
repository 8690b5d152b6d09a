"""The addresses in one register, and the memory that they refer to.

Addresses repeat: in a loop an instruction uses the same ones again, or the same ones plus a constant. So
:class:`Addresses` splits a row into its lowest address and the distances from it, and keeps everything that depends
only on the distances (indices, alignment, wavefronts, sectors) until they change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.lanes import Lanes
from matmill.emulator.memory.banks import LANES
from matmill.emulator.memory.regions import Region


class Addresses:
    """The addresses in one register, for the lanes of one bound block under one guard; ``among`` selects lanes."""

    def __init__(
        self, lanes: Lanes, row: Row, guard: Mask | None, *, negated: bool, space: str, among: Mask | None = None
    ) -> None:
        self.lanes = lanes
        self.among = among
        # An address of shared memory has 32 bits, and may be negative before an offset is added.
        self.row = row.view({8: np.int64, 4: np.int32}[row.itemsize])
        self.guard = guard
        self.negated = negated
        self.space = space
        self.low = 0
        self.span = 0
        self.bits = 0
        self.epoch = 0
        self.version = -1
        self.none = False
        self.mask: Mask | None = None
        self.distance = np.zeros(len(row), np.int64)
        self._next = np.zeros(len(row), np.int64)
        self._same = np.empty(len(row), np.bool_)
        self.indices: dict[tuple[str, int], NDArray[np.int64]] = {}
        self.memo: dict[Any, Any] = {}

    def _active(self) -> Mask | None:
        active = self.lanes.active
        if self.guard is not None:
            own = ~self.guard if self.negated else self.guard
            active = own.copy() if active is None else own & active
        if self.among is not None:
            active = self.among if active is None else self.among & active
        if active is None or active.all():
            return None
        return active

    def refresh(self) -> None:
        """Read the register again; to be called before the first use after it may have changed."""
        row, mask = self.row, self._active()
        if mask is None:
            low = int(np.minimum.reduce(row))
            np.subtract(row, low, out=self._next)
        else:
            chosen = row[mask]
            self.none = not len(chosen)
            if self.none:
                self.version = -1
                return
            low = int(np.minimum.reduce(chosen))
            np.subtract(row, low, out=self._next)
            self._next[~mask] = 0
        self.none = False
        fresh = self.version != self.lanes.version
        if not fresh:
            np.equal(self._next, self.distance, out=self._same)
            fresh = not self._same.all() or not _same_mask(mask, self.mask)
        if fresh:
            self.version = self.lanes.version
            self._next, self.distance = self.distance, self._next
            self.mask = mask
            self.span = int(np.maximum.reduce(self.distance))
            self.bits = int(np.bitwise_or.reduce(self.distance))
            self.indices.clear()
            self.memo.clear()
        elif low == self.low:
            return
        self.low = low
        self.epoch += 1

    def index(self, kind: str, shift: int) -> NDArray[np.int64]:
        """Return indices from the lowest address, for elements of ``1 << shift`` bytes in a region's arrays."""
        result = self.indices.get((kind, shift))
        if result is None:
            base = self.lanes.base(kind)
            result = (self.distance if base is None else self.distance + base) >> shift
            self.indices[kind, shift] = result
        return result

    def active_lanes(self) -> Mask:
        """Return the lanes that take part: bool[warps, 32]."""
        if self.mask is None:
            return np.ones((len(self.row) // LANES, LANES), np.bool_)
        return self.mask.reshape(-1, LANES)

    def identity(self) -> tuple[bytes, bytes]:
        """Return a key of the distances and of the lanes that take part."""
        result: tuple[bytes, bytes] | None = self.memo.get("identity")
        if result is None:
            result = self.distance.tobytes(), b"" if self.mask is None else self.mask.tobytes()
            self.memo["identity"] = result
        return result

    def absolute(self, offset: int) -> NDArray[np.int64]:
        """Return the addresses plus ``offset``: int64[warps, 32]; inactive lanes have the lowest one."""
        return (self.distance + (self.low + offset)).reshape(-1, LANES)


def _same_mask(a: Mask | None, b: Mask | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool((a == b).all())


class Piece:
    """The lanes of an access to one region: ``index`` counts elements from ``start``.

    ``owners`` are the blocks of the batch whose shared memory the lanes access, or None if each accesses its own.
    """

    def __init__(
        self,
        region: Region,
        start: int,
        index: NDArray[np.int64],
        mask: Mask | None,
        owners: NDArray[np.int64] | None = None,
    ) -> None:
        self.region = region
        self.start = start
        self.index = index
        self.mask = mask
        self.owners = owners

    def active(self, addresses: Addresses) -> Mask:
        """Return its lanes: bool[warps, 32]."""
        return addresses.active_lanes() if self.mask is None else self.mask.reshape(-1, LANES)
