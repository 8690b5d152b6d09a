"""Warp-wide accesses before they are looked up in shadow memory, and shadow arrays that grow and get finer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.clocks import Ints, Moment
from matmill.emulator.races.report import Access

S = TypeVar("S", bound=np.generic)

WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """One instruction executed by ``n`` warps.

    ``warp`` and ``clock`` are int64[n], ``addresses`` int64[n, 32] with inactive lanes set to 0, ``active``
    bool[n, 32], ``width`` the bytes per lane. ``agreed`` (bool[n]) says that lanes of the warp that write to one
    address write one value. ``tag`` (int64[n]) is the holder's: the interval in a log, the group of a ``cp.async``.
    ``full`` says that all lanes are active.
    """

    kind: str
    where: int
    width: int
    warp: Ints
    addresses: Ints
    active: NDArray[np.bool_]
    clock: Ints
    agreed: NDArray[np.bool_]
    tag: Ints
    full: bool

    def take(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the warps ``chosen`` (bool[n]); the same object where that is all of them."""
        if chosen.all():
            return self
        return Rows(
            self.kind,
            self.where,
            self.width,
            self.warp[chosen],
            self.addresses[chosen],
            self.active[chosen],
            self.clock[chosen],
            self.agreed[chosen],
            self.tag[chosen],
            self.full,
        )

    def spread(self, values: NDArray[S]) -> NDArray[S]:
        """Return one value per active lane, in row order, of one per warp: S[n] to S[active lanes]."""
        if self.full:
            return np.repeat(values, LANES)
        return np.broadcast_to(values[:, None], self.active.shape)[self.active]

    def on(self, values: NDArray[S]) -> NDArray[S]:
        """Return the active lanes' part of S[n, 32], in row order."""
        return values.ravel() if self.full else values[self.active]

    def access(self, space: str, base: Ints, unit: int, floor: Ints) -> tuple[Access, NDArray[np.bool_]]:
        """Return what the active lanes do to cells of ``unit`` bytes, with each entry's ``agreed``.

        ``base`` (int64[n, 32] or [n, 1]) plus the address in units is the first cell of each lane.
        """
        addresses = self.on(self.addresses)
        cells = self.on(base + self.addresses // unit)
        warp, clock, floor, agreed = map(self.spread, (self.warp, self.clock, floor, self.agreed.astype(np.int64)))
        lane = self.on(np.broadcast_to(np.arange(LANES), self.active.shape))
        units = self.width // unit
        if units > 1:
            cells = (cells[:, None] + np.arange(units)).ravel()
            addresses, warp, lane, clock, floor, agreed = (
                np.repeat(each, units) for each in (addresses, warp, lane, clock, floor, agreed)
            )
        moment = Moment(warp, lane, clock, floor)
        return Access(space, self.kind, self.where, cells, addresses, moment), agreed != 0


def rows_of(
    *,
    kind: str,
    where: int,
    width: int,
    warp: Ints,
    addresses: Ints,
    active: NDArray[np.bool_],
    clock: Ints,
    agreed: NDArray[np.bool_] | None,
) -> Rows:
    """Copy the caller's arrays, which it may reuse, into ``Rows``."""
    count = len(addresses)
    full = bool(active.all())
    return Rows(
        kind,
        where,
        width,
        np.array(warp, dtype=np.int64),
        np.array(addresses, dtype=np.int64) if full else np.where(active, addresses, np.int64(0)),
        np.ones((count, LANES), dtype=np.bool_) if full else np.array(active),
        clock,
        np.zeros(count, dtype=np.bool_) if agreed is None else np.array(agreed),
        np.zeros(count, dtype=np.int64),
        full,
    )


def first_thread(access: Access, i: int) -> int:
    """Return the thread of entry ``i``, numbered through all blocks."""
    return int(access.moment.warp[i]) * LANES + int(access.moment.lane[i])


def resized(array: NDArray[S], old: tuple[int, int], new: tuple[int, int], factor: int = 1) -> NDArray[S]:
    """An array of shape ``old`` in shape ``new``, each element repeated ``factor`` times, the rest zero; flat.

    >>> resized(np.array([1, 2, 3, 4]), (2, 2), (2, 3))
    array([1, 2, 0, 3, 4, 0])
    >>> resized(np.array([1, 2]), (1, 2), (1, 4), 2)
    array([1, 1, 2, 2])
    """
    wide = np.zeros(new, dtype=array.dtype)
    if array.size:
        wide[: old[0], : old[1] * factor] = np.repeat(array.reshape(old), factor, axis=1)
    return wide.ravel()
