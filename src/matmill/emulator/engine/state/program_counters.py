"""The program counters of a batch's lanes.

A lane's program counter is a block number, plus ``POLL`` while it waits alone (for a phase of an mbarrier, or for its
cluster), ``HOLD`` while it waits for lanes of its warp, ``BARRIER`` while it waits at a barrier of its thread block, or
``DONE``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES

POLL = 1 << 25
HOLD = 1 << 26
BARRIER = 1 << 27
DONE = 1 << 28

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class ProgramCounters:
    """The position of each lane of a batch (``counter``, int64[warps, 32]), and summaries for each warp.

    ``first`` (int64[warps]) is the lowest counter of a warp's lanes. ``whole`` (bool[warps]) says whether all of them
    have the same one. Lanes that are ``aside`` (bool[warps, 32]) do not run until the others of their warp wait.
    """

    def __init__(self, warps: int) -> None:
        self.counter = np.zeros((warps, LANES), np.int64)
        self.first = np.zeros(warps, np.int64)
        self.whole = np.ones(warps, np.bool_)
        self.aside = np.zeros((warps, LANES), np.bool_)
        self._any_aside = False

    def begin(self, live: Flags) -> None:
        """Set the ``live`` lanes (bool[warps, 32]) to the first block of code; the others have exited."""
        self.aside[...] = self._any_aside = False
        self.put(np.arange(len(live)), np.where(live, 0, DONE))

    def put(self, warps: Ints, counter: Ints) -> None:
        """Set the counters of all lanes of some warps (int64[n, 32])."""
        self.counter[warps] = counter
        self.first[warps] = counter.min(axis=1)
        self.whole[warps] = (counter == counter[:, :1]).all(axis=1)
        if self._any_aside:
            self._leave_out(warps)

    def put_aside(self, warps: Ints, lanes: Flags) -> None:
        """Let some ``lanes`` (bool[n, 32]) of ``warps`` run only when the others of their warp wait."""
        self.aside[warps] |= lanes
        self._any_aside = True
        self._leave_out(warps)

    def _leave_out(self, warps: Ints) -> None:
        """Leave lanes that are aside out of the summaries, or take them back where no other can run."""
        aside, counter = self.aside[warps], self.counter[warps]
        others = np.where(aside, DONE, counter).min(axis=1)
        back = others >= POLL
        self.aside[warps[back]] = False
        rest = ~back & aside.any(axis=1)
        self.first[warps[rest]] = others[rest]
        self.first[warps[back]] = counter[back].min(axis=1)
        self.whole[warps[rest]] = False
        self._any_aside = bool(self.aside.any())

    def put_slice(self, first: int, last: int, block: int) -> None:
        """Set all lanes of the warps from ``first`` to ``last`` (exclusive) to a block of code."""
        self.counter[first:last] = block
        self.first[first:last] = block

    def send(self, warps: Ints, lanes: Flags, counter: int) -> None:
        """Set the counters of some ``lanes`` (bool[n, 32]) of ``warps`` to one value."""
        counters = self.counter[warps]
        counters[lanes] = counter
        self.put(warps, counters)

    def release(self, warps: Ints, lanes: Flags, wait: int) -> None:
        """End the wait (``HOLD`` or ``BARRIER``) of some ``lanes`` (bool[n, 32]) of ``warps``."""
        counters = self.counter[warps]
        counters[lanes] -= wait
        self.put(warps, counters)

    def can_run(self) -> Flags:
        """Return the warps with lanes that are neither waiting nor done: bool[warps]."""
        return self.first < POLL

    def alone(self, first: int, last: int) -> bool:
        """Tell whether only the warps from ``first`` to ``last`` (exclusive) can run."""
        return bool((self.first[:first] >= POLL).all() and (self.first[last:] >= POLL).all())

    def held(self) -> Ints:
        """Return the warps whose lanes all wait, some of them for lanes of their warp."""
        return np.flatnonzero((self.first >= HOLD) & (self.first < BARRIER))
