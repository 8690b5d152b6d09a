"""Operations of the asynchronous units that have been issued: each acts at once, or as late as the waits allow.

The two schedules are the extremes of what the hardware may do. A kernel that is right gives the same bits in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matmill.emulator.engine.async_units.mbarriers import Key

# Failed tests of mbarriers after which an operation acts.
_PATIENCE = 256


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation in flight: what it does when it acts, and the mbarriers that it then arrives at."""

    act: Callable[[], None]
    barriers: frozenset[Key] = frozenset()


class AsyncQueue:
    """The operations in flight of one batch, in the order of issue; none is kept unless ``late``."""

    def __init__(self, *, late: bool) -> None:
        self.late = late
        self._queue: dict[Operation, None] = {}
        self._failed = 0

    def issue(self, operation: Operation) -> None:
        """Start an operation."""
        if self.late:
            self._queue[operation] = None
        else:
            operation.act()

    def act(self, operations: Iterable[Operation]) -> None:
        """Let these act, as far as they have not."""
        for operation in operations:
            if operation in self._queue:
                del self._queue[operation]
                operation.act()

    def act_for(self, barriers: set[Key]) -> bool:
        """Let the oldest operation act that arrives at one of ``barriers``, or the oldest of all; False without any."""
        if not self._queue:
            return False
        chosen = next((o for o in self._queue if o.barriers & barriers), next(iter(self._queue)))
        self.act((chosen,))
        return True

    def tested(self, barrier: Key) -> None:
        """A test of a barrier has failed. A thread that tests again and again, with a clock, never lets others wait."""
        self._failed += 1
        if self._failed % _PATIENCE == 0:
            self.act_for({barrier})

    def finish(self) -> None:
        """Let all that are left act: the batch has ended."""
        self.act(tuple(self._queue))
