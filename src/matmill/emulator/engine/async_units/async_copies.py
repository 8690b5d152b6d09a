"""Asynchronous copies (cp.async) in flight: their groups, the waits for them, and when the bytes move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.memory.address_space import AddressSpace, Words


@dataclass
class _Issued:
    """Copies issued together: for each thread its column, shared byte, global address, bytes to read, and group."""

    columns: Row
    shared: Row
    source: Row
    amount: Row
    group: Row
    size: int

    def part(self, mask: Mask) -> _Issued:
        """Return the copies of the threads in ``mask``."""
        return _Issued(
            self.columns[mask], self.shared[mask], self.source[mask], self.amount[mask], self.group[mask], self.size
        )


class PendingCopies:
    """The copies of one batch, each by the column of its thread.

    With ``late`` the bytes move at the wait that requires them, or at the end of the batch; else at once.
    """

    def __init__(self, columns: int, shared: Words, space: AddressSpace, *, late: bool) -> None:
        self.shared = shared
        self.space = space
        self.late = late
        self.committed = np.zeros(columns, np.int64)
        self.queue: list[_Issued] = []

    def issue(self, columns: Row, shared: Row, source: Row, amount: Row, size: int) -> None:
        """Start copies of ``size`` bytes, ``amount`` of them read and the rest zero."""
        issued = _Issued(columns, shared, source, amount, self.committed[columns], size)
        if self.late:
            self.queue.append(issued)
        else:
            self._land(issued)

    def commit(self, columns: Row) -> None:
        """Close the open group of these threads."""
        self.committed[columns] += 1

    def wait(self, columns: Row, allowed: int) -> None:
        """Complete all but the ``allowed`` newest groups of these threads; -1: all copies, uncommitted ones too."""
        if not self.queue:
            return
        waiting = np.zeros(len(self.committed), np.bool_)
        waiting[columns] = True
        last = self.committed - allowed if allowed >= 0 else np.full_like(self.committed, np.iinfo(np.int64).max)
        left: list[_Issued] = []
        for issued in self.queue:
            due = waiting[issued.columns] & (issued.group < last[issued.columns])
            if due.all():
                self._land(issued)
            elif due.any():
                self._land(issued.part(due))
                left.append(issued.part(~due))
            else:
                left.append(issued)
        self.queue = left

    def finish(self) -> None:
        """Complete the copies that nobody waited for: the kernel has ended."""
        for issued in self.queue:
            self._land(issued)
        self.queue = []
        self.committed[...] = 0

    def _land(self, issued: _Issued) -> None:
        """Move the bytes, by the widest element that fits: all lanes of one call have one size."""
        shared = self.shared
        if (issued.amount == issued.size).all():
            word = issued.size
            shared[word][issued.shared // word] = self._read(issued.source, word)
            return
        for byte in range(issued.size):
            reads = issued.amount > byte
            value = np.zeros(len(issued.columns), np.uint8)
            value[reads] = self._read(issued.source[reads] + byte, 1)
            shared[1][issued.shared + byte] = value

    def _read(self, addresses: Row, word: int) -> Row:
        """Return elements of ``word`` bytes at global addresses, which were checked when the copy was issued."""
        space = self.space
        if not len(addresses):
            return np.zeros(0, np.uint8)
        allocation = space.find(int(addresses.min()))
        if allocation is not None and int(addresses.max()) < allocation.end:
            return np.asarray(allocation.words[word][(addresses - allocation.start) // word])
        result = np.empty(len(addresses), {16: "c16"}.get(word, f"u{word}"))
        for i, address in enumerate(addresses):
            owner = space.find(int(address))
            if owner is not None:
                result[i] = owner.words[word][(int(address) - owner.start) // word]
        return result
