"""Logs of releases, one per release sequence, and the parts of logs that a thread knows.

A *sequence* (the release sequence; PTX: the observation order that starts at one write) is a strong write and a chain
of atomics after it at one location, each of which read the value that the one before had written. It has a *log* of the
releases of its writes, in order. A reader of the location observes all of the log so far, so it learns a log and a
length: a *reach*. A release in a log has a *snapshot* of its thread's knowledge: clocks for the warps of its own block,
and a reach for everything that it had learned by acquiring. So nothing is ever copied per block of the launch. A launch
with n releases has n snapshots, each of one block's warps, and the reach of a thread is followed through the logs
(``horizon``) only if its access is in doubt.

Reaches are never changed, only replaced, so that they can be shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from matmill.emulator.races.order.clocks import Ints

# The part of a log in a reach: all releases, only those of fence.sc, or (a number) the releases of one block.
ALL, FENCED = -1, -2

Reach: TypeAlias = "dict[tuple[Log, int], int]"
NOTHING: Reach = {}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A thread's knowledge when its warp's clock was ``clock``.

    ``view`` (int64[warps per block]) is the known clock of each warp of its block, ``lanes`` (int64[32], or None if
    ``view`` is enough) that of each lane of its own warp, ``known`` the acquired reach.
    """

    warp: int
    clock: int
    view: Ints
    lanes: Ints | None
    known: Reach


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One write's release, or the fences that a barrier passed on: the snapshot of the threads ``lanes`` of its warp.

    ``sc`` says that the snapshot is a fence.sc's; ``fenced`` is the reach of the fence.sc that the writer knew by
    barriers; ``write`` is the clock at which the write is alone if a fence before it releases, else -1.
    """

    snapshot: Snapshot | None
    lanes: tuple[int, ...]
    sc: bool
    fenced: Reach
    write: int = -1


class Log:
    """Releases in order; ``fences`` says that one of them has a fence.sc."""

    __slots__ = ("entries", "fences")

    def __init__(self) -> None:
        self.entries: list[Release] = []
        self.fences = False

    def append(self, release: Release) -> None:
        """Add the next release."""
        self.entries.append(release)
        self.fences = self.fences or release.sc or bool(release.fenced)


class Sequence:
    """One location's release sequence; releases of block scope are in a log of their block.

    ``block``, ``wide`` and ``width`` are the last write's: the next access continues the sequence only if both scopes
    include the other's thread, and both have one ``width``.
    """

    def __init__(self, width: int) -> None:
        self.block = -1
        self.wide = False
        self.log = Log()
        self._width = width
        self._narrow: dict[int, Log] = {}
        self._members: set[tuple[int, int, int]] = set()

    def links(self, block: int, width: int, *, wide: bool) -> bool:
        """Tell whether an access by a thread of ``block`` observes the last write."""
        return width == self._width and (block == self.block or (wide and self.wide))

    def add(self, block: int, release: Release, *, wide: bool) -> None:
        """Log a release, unless the same thread released the same here before."""
        name = (id(release.snapshot), release.lanes[0] if release.lanes else -1, id(release.fenced))
        if name not in self._members:
            self._members.add(name)
            (self.log if wide else self._narrow.setdefault(block, Log())).append(release)

    def lengths(self, block: int) -> tuple[int, int]:
        """Return the lengths of the logs that a thread of ``block`` may see now."""
        narrow = self._narrow.get(block)
        return len(self.log.entries), 0 if narrow is None else len(narrow.entries)

    def reach(self, block: int, lengths: tuple[int, int], *, wide: bool) -> Reach:
        """Return the reach that a thread of ``block`` learns by an acquire of this scope at these lengths of logs."""
        result: Reach = {}
        if lengths[0]:
            result[self.log, ALL if wide else block] = lengths[0]
        if lengths[1]:
            result[self._narrow[block], ALL] = lengths[1]
        return result


def joined(reaches: Iterable[Reach]) -> Reach:
    """Return the union of ``reaches``, which is one of them if it includes the others."""
    apart = list({id(reach): reach for reach in reaches if reach}.values())
    if len(apart) < 2:
        return apart[0] if apart else NOTHING
    result = dict(apart[0])
    for reach in apart[1:]:
        for log, length in reach.items():
            if length > result.get(log, 0):
                result[log] = length
    return result


def exceeds(reach: Reach, known: Reach) -> bool:
    """Tell whether ``reach`` covers anything that ``known`` does not."""
    return any(length > known.get(log, 0) for log, length in reach.items())
