"""Race detection: accesses that no chain of barriers orders, in whatever order the emulator ran them.

Lockstep emulation hides races, so ``RaceDetector`` ignores the order of execution and tracks happens-before instead
(``clocks``): program order of each thread, ``bar.warp.sync`` among lanes, barriers among warps, and the wait that turns
a ``cp.async`` into a write of the thread that issued it. Two accesses to the same bytes race unless one happens before
the other, or both read, or both are strong: atomics, or loads and stores that are .relaxed or more.

Releases and acquires order threads too, also of different blocks (``release_order``): a kernel that passes data between
blocks through a flag is reported only if the PTX memory model does not order it. This order depends on the order of the
run's atomics; everything else is independent of the order of execution.

Shared memory is checked exactly (``shared_space``). So is global memory (``global_space``), with two conditions. A
program with named barriers must be announced (``partial_barriers``): otherwise, if three or more warps of one block
read a word with no barrier between them, only two are remembered, which is enough if all barriers are the whole
block's. A program that releases or acquires must be announced too (``releases``), and is checked exactly while no more
than eight accesses to a word, unordered among themselves, must be remembered (``cells``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.order.clocks import Clocks, Ints
from matmill.emulator.races.order.race_reports import (
    ATOMIC,
    COPY,
    READ,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
    Race,
    Reports,
)
from matmill.emulator.races.order.release_order import Order
from matmill.emulator.races.order.threads import NEW, State
from matmill.emulator.races.shadow.copy_groups import CopyQueue
from matmill.emulator.races.shadow.global_space import GlobalSpace
from matmill.emulator.races.shadow.interval_patterns import IntervalPatterns, Pattern
from matmill.emulator.races.shadow.shared_space import RepeatedRead, SharedSpace
from matmill.emulator.races.shadow.warp_accesses import Stores, rows_of
from matmill.errors import ArgumentError

__all__ = ["Arrival", "Race", "RaceDetector", "Stores"]

_STRONG = {READ: STRONG_READ, WRITE: STRONG_WRITE, ATOMIC: ATOMIC}


@dataclass(frozen=True)
class Arrival:
    """What a warp passes on by bar.arrive: clocks, knowledge by acquiring, and the vectors of asynchronous units."""

    clocks: Ints
    state: State
    vectors: NDArray[np.int32] | None = None


class RaceDetector:
    """Finds the races of one launch from its accesses, barriers and copies, reported in any valid order.

    Warps are numbered through the launch: ``block * warps_per_block + warp``. All calls take whole warps, each at most
    once per call. Arrays that are kept are copied. Addresses are multiples of ``width``. ``partial_barriers`` says that
    the program has barriers that not all warps of a block meet, ``releases`` that it has fences, or accesses that
    release or acquire; without it these order nothing.

    >>> lanes = np.arange(32)[None] * 4
    >>> on = np.ones((1, 32), dtype=bool)
    >>> detector = RaceDetector(blocks=1, warps_per_block=2)
    >>> detector.access("shared", warp=np.array([0]), addresses=lanes, active=on, width=4, kind="write", where=7)
    >>> detector.access("shared", warp=np.array([1]), addresses=lanes, active=on, width=4, kind="read", where=9)
    >>> print(detector.races()[0])
    race in shared memory at 0x0: write by thread 0 of block 0 (instruction 7) and read by thread 32 of block 0 \
(instruction 9)
    """

    def __init__(
        self, *, blocks: int, warps_per_block: int, partial_barriers: bool = False, releases: bool = False
    ) -> None:
        self._warps_per_block = warps_per_block
        self._clocks = Clocks(blocks=blocks, warps_per_block=warps_per_block)
        self._reports = self._new_reports()
        general = np.zeros(blocks, dtype=np.bool_)
        self._shared = self._shared_space(general)
        always = np.ones(blocks, dtype=np.bool_)
        exact = always if partial_barriers or releases else general
        self._global = GlobalSpace(self._clocks, self._reports, exact, ordered=releases)
        self._order = Order(self._clocks, self._shared.generalize) if releases else None
        self._copies = CopyQueue(blocks * warps_per_block)

    def _new_reports(self) -> Reports:
        return Reports(self._clocks)

    def _shared_space(self, general: NDArray[np.bool_]) -> SharedSpace:
        return SharedSpace(self._clocks, self._reports, general)

    def access(
        self, space: str, *, warp: Ints, addresses: Ints, active: NDArray[np.bool_], width: int, kind: str, where: int,
        stores: Stores | None = None, ordering: Ordering | None = None, owners: Ints | None = None,
        pattern: Pattern | None = None,
    ) -> None:  # fmt: skip
        """Record one instruction executed by ``n`` warps: int64[n], int64[n, 32] and bool[n, 32].

        ``space`` is "shared" (byte offsets in the block's own window) or "global" (virtual addresses), ``width`` the
        bytes per lane (1 to 16, a power of two), ``kind`` "read", "write" or "atomic", ``where`` the instruction's
        index. ``stores`` are the stored values: without them all writes count as different. Lanes of a warp that store
        one value in one instruction do not race; other writes of one value are reported as "same-value". ``ordering``
        makes the access a strong one. ``owners`` (int64[n]) are the blocks whose shared memory each warp accesses, its
        own by default. ``pattern`` is the pattern of these accesses, which :attr:`patterns` did not follow.

        Raises ``ArgumentError``, and ``EmulationError`` for global addresses more than 1 TiB apart.
        """
        if space not in ("shared", "global"):
            raise ArgumentError(argument="space", got=repr(space), wanted="'shared' or 'global'", fix="Resolve it.")
        if kind not in (READ, WRITE, ATOMIC):
            raise ArgumentError(
                argument="kind", got=repr(kind), wanted="'read', 'write' or 'atomic'", fix="Copies go to copy()."
            )
        _check_width(width)
        clock = self._clocks.now[warp]
        blocks = warp // self._warps_per_block if owners is None else owners
        if self._order is not None:
            if ordering is not None:
                clock = self._order.access(
                    space, warp=warp, addresses=addresses, active=active, width=width, kind=kind, ordering=ordering,
                    owners=blocks,
                )  # fmt: skip
            elif kind == WRITE:
                self._order.overwrite(space, addresses=addresses, active=active, width=width, owners=blocks)
        rows = rows_of(
            kind=kind if ordering is None else _STRONG[kind], where=where, width=width, warp=warp, addresses=addresses,
            active=active, clock=clock, owner=owners,
        )  # fmt: skip
        if space == "shared":
            self._shared.access(rows, stores, pattern)
        else:
            self._global.access(rows, stores)

    @property
    def patterns(self) -> IntervalPatterns | None:
        """The patterns of plain accesses to shared memory that need no check, or None if every access needs one.

        An access that :meth:`~IntervalPatterns.follow` takes is recorded by it, any other by :meth:`access`.
        """
        return self._shared.patterns if self._order is None else None

    def repeated_read(
        self, *, warp: Ints, addresses: Ints, active: NDArray[np.bool_], width: int, where: int
    ) -> RepeatedRead | None:
        """Return a fast check for repetitions of a plain read of shared memory that :meth:`access` has checked.

        The arguments are those of :meth:`access`. None means that only :meth:`access` can check it.
        """
        rows = rows_of(
            kind=READ, where=where, width=width, warp=warp, addresses=addresses, active=active,
            clock=self._clocks.now[warp],
        )  # fmt: skip
        return self._shared.repeated(rows)

    def fence(self, warps: Ints, lanes: NDArray[np.bool_], ordering: Ordering) -> None:
        """Record a fence by ``lanes`` (bool[m, 32]) of ``warps`` (int64[m])."""
        if self._order is not None:
            self._order.fence(warps, lanes, ordering)

    def arrival(self, warp: int) -> Arrival:
        """Record that a warp arrives at a barrier of its block and does not wait; return what it passes on."""
        self._shared.generalize(np.array([warp // self._warps_per_block]))
        state = self._order.threads.arrival(warp) if self._order is not None else NEW
        return Arrival(self._clocks.arrival(warp), state)

    def barrier(self, warps: Ints, arrivals: Sequence[Arrival] = ()) -> None:
        """Let ``warps`` (int64[m], one block's) meet, after the ``arrivals`` of warps that have not waited.

        Everything before, in any lane of them, happens before everything after.
        """
        warps = np.asarray(warps, dtype=np.int64)
        blocks = warps[:1] // self._warps_per_block
        if len(warps) == self._warps_per_block:
            self._meet_in_full(blocks)
        else:
            self._shared.generalize(blocks)
            self._clocks.partial_barrier(warps, [each.clocks for each in arrivals])
            if self._order is not None:
                self._order.threads.meet_some(warps, [each.state for each in arrivals])

    def barriers(self, groups: Sequence[Ints] | Ints) -> None:
        """Let each of many groups (int64[g, m], or a list of int64[m]) meet at its own barrier.

        It is fastest for an array whose rows are all warps of a block.
        """
        if isinstance(groups, np.ndarray) and groups.ndim == 2 and groups.shape[1] == self._warps_per_block:
            self._meet_in_full(groups[:, 0] // self._warps_per_block)
            return
        for group in groups:
            self.barrier(group)

    def warp_barrier(self, warps: Ints, lanes: NDArray[np.bool_]) -> None:
        """Record ``bar.warp.sync`` by ``warps`` (int64[m]) with ``lanes`` (bool[m, 32]) in the member masks."""
        self._shared.settle()
        whole = lanes.all(axis=1)
        self._clocks.warp_barrier(warps[whole])
        if self._order is not None:
            self._order.threads.meet_warps(warps[whole])
        if not whole.all():
            self._shared.generalize(np.unique(warps[~whole] // self._warps_per_block))
            for warp, members in zip(warps[~whole].tolist(), lanes[~whole], strict=True):
                self._clocks.lane_barrier(warp, members)
                if self._order is not None:
                    self._order.threads.meet_lanes(warp, np.flatnonzero(members).tolist())

    def copy(self, *, warp: Ints, addresses: Ints, active: NDArray[np.bool_], width: int, where: int) -> None:
        """Record ``cp.async`` by ``n`` warps writing ``width`` bytes per lane to shared ``addresses`` (offsets)."""
        _check_width(width)
        rows = rows_of(
            kind=COPY, where=where, width=width, warp=warp, addresses=addresses, active=active,
            clock=self._clocks.now[warp],
        )  # fmt: skip
        self._shared.copy(rows)
        self._copies.issue(rows)

    def copy_commit(self, warps: Ints) -> None:
        """Close the open ``cp.async`` group of each of ``warps`` (int64[m])."""
        self._copies.commit(warps)

    def copy_wait(self, warps: Ints, allowed: int) -> None:
        """Let ``warps`` (int64[m]) wait until at most ``allowed`` of their groups are in flight; -1: no copy at all.

        The completed copies become writes of the issuing threads at this moment.
        """
        for rows in self._copies.wait(warps, allowed):
            self._shared.complete(replace(rows, clock=self._clocks.now[rows.warp]))

    def release(self, blocks: Ints) -> None:
        """Free the data of ``blocks`` (int64[b]), which have ended, except for their accesses to global memory."""
        blocks = np.asarray(blocks, dtype=np.int64)
        self._copies.forget((blocks[:, None] * self._warps_per_block + np.arange(self._warps_per_block)).ravel())
        self._shared.release(blocks)
        self._clocks.forget(blocks)
        if self._order is not None:
            self._order.forget(blocks)

    def races(self) -> list[Race]:
        """Return the races so far: the first of every pair of instructions, at most 1000 pairs."""
        return self._reports.races()

    def _meet_in_full(self, blocks: Ints) -> None:
        """Let all warps of each of ``blocks`` meet."""
        self._shared.block_barrier(blocks)
        self._clocks.block_barrier(blocks)
        if self._order is not None:
            self._order.threads.meet(blocks)


def _check_width(width: int) -> None:
    """Check that a lane can access that many bytes at once."""
    if width not in (1, 2, 4, 8, 16):
        raise ArgumentError(
            argument="width", got=repr(width), wanted="1, 2, 4, 8 or 16 bytes per lane", fix="Split wider accesses."
        )
