"""Which events of a small program come before which, by brute force: the reference of the race detectors' tests."""

from __future__ import annotations

from collections.abc import Iterable

Thread = tuple[int, int]


class Graph:
    """Nodes with the sets of all nodes before them, as the bits of an integer; threads are (warp, lane)."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.latest: dict[Thread, int] = {}

    def node(self, *after: int) -> int:
        """Return a new node after some others."""
        bits = 0
        for one in after:
            bits |= self.before[one] | 1 << one
        self.before.append(bits)
        return len(self.before) - 1

    def step(self, thread: Thread, *after: int) -> int:
        """Return a new node in a thread's program order, and after some others."""
        self.latest[thread] = self.node(*after, *([self.latest[thread]] if thread in self.latest else []))
        return self.latest[thread]

    def meet(self, threads: Iterable[Thread]) -> None:
        """Join some threads in one node."""
        threads = list(threads)
        node = self.node(*(self.latest[thread] for thread in threads if thread in self.latest))
        for thread in threads:
            self.latest[thread] = node

    def comes_before(self, one: int, two: int) -> bool:
        """Tell whether one node comes before another."""
        return bool(self.before[two] >> one & 1)
