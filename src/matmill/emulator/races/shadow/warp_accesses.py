"""Warp-wide accesses before their look-up in shadow memory, and shadow arrays that grow and become finer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import Ints, Moment
from matmill.emulator.races.order.race_reports import CellAccesses

S = TypeVar("S", bound=np.generic)
Bytes: TypeAlias = "NDArray[np.uint8]"

WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class WarpAccesses:
    """One instruction executed by ``n`` warps.

    ``warp`` and ``clock`` are int64[n], ``addresses`` int64[n, 32] with inactive lanes set to 0, ``active`` bool[n,
    32], ``width`` the bytes per lane. ``tag`` (int64[n]) is set by the container: the interval in a log, the group of a
    ``cp.async``. ``full`` says that all lanes are active. ``owner`` (int64[n]) are the blocks whose shared memory the
    warps access, or None if each accesses its own.
    """

    kind: str
    where: int
    width: int
    warp: Ints
    addresses: Ints
    active: NDArray[np.bool_]
    clock: Ints
    tag: Ints
    full: bool
    owner: Ints | None = None

    def take(self, chosen: NDArray[np.bool_]) -> WarpAccesses:
        """Return the warps ``chosen`` (bool[n]); the same object for all of them."""
        if chosen.all():
            return self
        return WarpAccesses(
            self.kind, self.where, self.width, self.warp[chosen], self.addresses[chosen], self.active[chosen],
            self.clock[chosen], self.tag[chosen], self.full, None if self.owner is None else self.owner[chosen],
        )  # fmt: skip

    def tagged(self, tag: Ints) -> WarpAccesses:
        """Return the same rows with another tag."""
        return WarpAccesses(
            self.kind, self.where, self.width, self.warp, self.addresses, self.active, self.clock, tag, self.full,
            self.owner,
        )  # fmt: skip

    def blocks(self, warps_per_block: int) -> Ints:
        """Return the block whose shared memory each warp accesses."""
        return self.warp // warps_per_block if self.owner is None else self.owner

    def spread(self, values: NDArray[S]) -> NDArray[S]:
        """Return a value per active lane, in row order, from a value per warp: S[n] to S[active lanes]."""
        if self.full:
            return np.repeat(values, LANES)
        return np.broadcast_to(values[:, None], self.active.shape)[self.active]

    def on(self, values: NDArray[S]) -> NDArray[S]:
        """Return the values of active lanes in S[n, 32], in row order."""
        return values.ravel() if self.full else values[self.active]

    def access(self, space: str, base: Ints, unit: int, floor: Ints) -> CellAccesses:
        """Return the accesses of active lanes to cells of ``unit`` bytes.

        ``base`` (int64[n, 32] or [n, 1]) plus the address in units is the first cell of each lane.
        """
        addresses = self.on(self.addresses)
        cells = self.on(base + self.addresses // unit)
        warp, clock, floor = map(self.spread, (self.warp, self.clock, floor))
        lane = self.on(np.broadcast_to(np.arange(LANES), self.active.shape))
        units = self.width // unit
        if units > 1:
            cells = (cells[:, None] + np.arange(units)).ravel()
            addresses, warp, lane, clock, floor = (
                np.repeat(each, units) for each in (addresses, warp, lane, clock, floor)
            )
        moment = Moment(warp, lane, clock, floor)
        return CellAccesses(space, self.kind, self.where, unit, cells, addresses, moment)


def rows_of(
    *,
    kind: str,
    where: int,
    width: int,
    warp: Ints,
    addresses: Ints,
    active: NDArray[np.bool_],
    clock: Ints,
    owner: Ints | None = None,
) -> WarpAccesses:
    """Return ``WarpAccesses`` with copies of the caller's arrays, which it may reuse."""
    count = len(addresses)
    full = bool(active.all())
    return WarpAccesses(
        kind,
        where,
        width,
        np.array(warp, dtype=np.int64),
        np.array(addresses, dtype=np.int64) if full else np.where(active, addresses, np.int64(0)),
        np.ones((count, LANES), dtype=np.bool_) if full else np.array(active),
        clock,
        np.zeros(count, dtype=np.int64),
        full,
        owner,
    )


class Stores:
    """The values that an instruction of ``n`` warps stores, and those before.

    ``contents`` returns both as uint8[n, 32, width]. It is called only if two stores overlap, before they take effect.
    """

    def __init__(self, warp: Ints, contents: Callable[[], tuple[Bytes, Bytes]]) -> None:
        self._warp = warp
        self._contents = contents

    def alike(self, access: CellAccesses, one: Ints, two: Ints) -> NDArray[np.bool_]:
        """Tell whether the entries ``one`` of ``access`` store the same bytes as the entries ``two``."""
        stored, _ = self._contents()
        same: NDArray[np.bool_] = (self._part(stored, access.take(one)) == self._part(stored, access.take(two))).all(1)
        return same

    def unchanging(self, access: CellAccesses) -> NDArray[np.bool_]:
        """Tell whether entries of ``access`` store the bytes that are there already."""
        stored, held = self._contents()
        same: NDArray[np.bool_] = (self._part(stored, access) == self._part(held, access)).all(axis=1)
        return same

    def _part(self, content: Bytes, access: CellAccesses) -> Bytes:
        """Return the bytes of each entry's cell: uint8[e, bytes of a cell]."""
        order = np.argsort(self._warp)
        row = order[np.searchsorted(self._warp, access.moment.warp, sorter=order)]
        parts = content.reshape(len(content), LANES, -1, access.unit)
        # Addresses are multiples of the width, so a lane's first cell is a multiple of its number of cells.
        return np.asarray(parts[row, access.moment.lane, access.cells % parts.shape[2]])


def resized(array: NDArray[S], old: tuple[int, int], new: tuple[int, int], factor: int = 1) -> NDArray[S]:
    """Return ``array`` of shape ``old`` in shape ``new``, each element repeated ``factor`` times, the rest zero; flat.

    >>> resized(np.array([1, 2, 3, 4]), (2, 2), (2, 3))
    array([1, 2, 0, 3, 4, 0])
    >>> resized(np.array([1, 2]), (1, 2), (1, 4), 2)
    array([1, 1, 2, 2])
    """
    wide = np.zeros(new, dtype=array.dtype)
    if array.size:
        wide[: old[0], : old[1] * factor] = np.repeat(array.reshape(old), factor, axis=1)
    return wide.ravel()
