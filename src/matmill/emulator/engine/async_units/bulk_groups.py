"""Bulk copies and reductions from shared memory: their groups, and their progress.

PTX ISA, "cp.async.bulk.commit_group" and "cp.async.bulk.wait_group". Groups are per thread. A wait may be for the reads
of the source only: the writes to global memory then follow later, at the latest when the grid ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.frontend.syntax import Instruction

Ints = NDArray[np.int64]


@dataclass(eq=False)
class BulkStore:
    """A bulk copy from shared memory by one thread of a batch.

    ``read`` reads its source and returns the function that writes it to global memory. ``agent`` is its number in the
    race detector, -1 without one.
    """

    column: int
    instruction: Instruction
    read: Callable[[], Callable[[], None]]
    agent: int
    group: int = 0
    write: Callable[[], None] | None = None
    waited: bool = False

    def finish_read(self) -> None:
        """Read the source, unless that has been done."""
        if self.write is None:
            self.write = self.read()


class BulkGroups:
    """The bulk stores in flight of one batch. With ``late`` they take effect at the wait for them, else at once."""

    def __init__(self, columns: int, *, late: bool) -> None:
        self.late = late
        self._committed = np.zeros(columns, np.int64)
        self._stores: list[BulkStore] = []

    def begin(self) -> None:
        """Start a batch, with nothing in flight."""
        self._committed[...] = 0
        self._stores = []

    def issue(self, store: BulkStore) -> None:
        """Add a store to the open group of its thread."""
        store.group = int(self._committed[store.column])
        self._stores.append(store)
        if not self.late:
            store.finish_read()
            self._write(store)

    def commit(self, columns: Ints) -> None:
        """Close the open group of these threads."""
        self._committed[columns] += 1

    def wait(self, columns: Ints, allowed: int, *, reads_only: bool) -> list[BulkStore]:
        """Finish all but the ``allowed`` latest groups of these threads, or their reads, and return those stores."""
        waiting = set(columns.tolist())
        due = [s for s in self._stores if s.column in waiting and s.group < self._committed[s.column] - allowed]
        for store in due:
            store.finish_read()
            store.waited = True
            if not reads_only:
                self._write(store)
        if not reads_only:
            done = set(map(id, due))
            self._stores = [s for s in self._stores if id(s) not in done]
        return due

    def finish(self) -> list[BulkStore]:
        """Complete all stores: the batch has ended. Return those whose reads nobody waited for."""
        for store in self._stores:
            store.finish_read()
            self._write(store)
        left = [s for s in self._stores if not s.waited]
        self._stores = []
        return left

    @staticmethod
    def _write(store: BulkStore) -> None:
        if store.write is not None:
            store.write()
            store.write = _nothing


def _nothing() -> None:
    """Do nothing: the store has taken effect."""
