"""Operations of the asynchronous units in flight: each takes effect at once, or as late as the waits allow.

The two schedules are the extremes of possible hardware behaviour. A correct kernel gives the same bits with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matmill.emulator.engine.async_units.mbarriers import Key

# Failed tests of mbarriers after which an operation takes effect.
_PATIENCE = 256


@dataclass(frozen=True, eq=False)
class AsyncOperation:
    """An operation in flight: its effect, and the mbarriers at which it then arrives."""

    act: Callable[[], None]
    barriers: frozenset[Key] = frozenset()


class AsyncQueue:
    """The operations in flight of one batch, in order of issue; the queue is empty unless ``late``."""

    def __init__(self, *, late: bool) -> None:
        self.late = late
        self._queue: dict[AsyncOperation, None] = {}
        self._failed = 0

    def issue(self, operation: AsyncOperation) -> None:
        """Start an operation."""
        if self.late:
            self._queue[operation] = None
        else:
            operation.act()

    def act(self, operations: Iterable[AsyncOperation]) -> None:
        """Let those of ``operations`` take effect that have not yet."""
        for operation in operations:
            if operation in self._queue:
                del self._queue[operation]
                operation.act()

    def act_for(self, barriers: set[Key]) -> bool:
        """Let the oldest operation that arrives at one of ``barriers``, else the oldest of all, take effect, if any."""
        if not self._queue:
            return False
        chosen = next((o for o in self._queue if o.barriers & barriers), next(iter(self._queue)))
        self.act((chosen,))
        return True

    def tested(self, barrier: Key) -> None:
        """Count a failed test of a barrier. A thread that polls in a loop with a clock never lets others wait."""
        self._failed += 1
        if self._failed % _PATIENCE == 0:
            self.act_for({barrier})

    def finish(self) -> None:
        """Let all remaining operations take effect: the batch has ended."""
        self.act(tuple(self._queue))
