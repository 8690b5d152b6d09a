"""Lanes that wait alone: they continue when their condition holds, or when a try_wait fails."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.schedule.lane_polls import Polls
from matmill.emulator.engine.schedule.thread_names import end_instruction, who
from matmill.emulator.engine.state.program_counters import HOLD, POLL, Flags, Ints, ProgramCounters
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.waits import PhaseWait


class LaneWaits:
    """The waits of single lanes of a batch. ``waits`` are the waits of the program, by the block that follows."""

    def __init__(self, interpreter: Interpreter, counters: ProgramCounters, waits: Mapping[int, Terminator]) -> None:
        self._machine = interpreter.machine
        self._counters = counters
        self._waits = waits
        self._polls = Polls(interpreter)

    def begin(self) -> None:
        """Start a batch, in which nobody waits."""
        self._polled = self._polls.completions()
        self._timed_out = -1

    def changed(self) -> bool:
        """Tell whether any condition that lanes may poll has come true since they were last examined."""
        return self._polled != self._polls.completions()

    def pass_at_once(self, end: Terminator, first: int, last: int) -> bool:
        """Let whole warps pass if none of their lanes needs to wait, as for a completed phase."""
        warps, lanes = np.arange(first, last), np.ones((last - first, LANES), np.bool_)
        passes = bool(self._polls.past(end, warps, lanes).all())
        if passes:
            self._polls.count(end, len(warps))
            self._polls.finish(end, warps, lanes, succeeds=True)
        return passes

    def look(self, end: Terminator, warps: Ints) -> None:
        """Release the lanes of ``warps`` that wait at ``end`` and whose condition holds."""
        self._polls.count(end, len(warps))
        self._look(end, warps, self._counters.counter[warps] == POLL + end.next)

    def look_again(self) -> None:
        """Examine all waiting lanes, if any condition that they may poll has come true."""
        if self.changed():
            self._polled = self._polls.completions()
            for end, warps, lanes in self._waiting():
                self._look(end, warps, lanes)

    def _look(self, end: Terminator, warps: Ints, lanes: Flags) -> None:
        self._go_on(end, warps, self._polls.past(end, warps, lanes), succeeds=True)

    def _waiting(self) -> list[tuple[Terminator, Ints, Flags]]:
        """Return the ends at which lanes wait alone, with the warps that have such lanes, and these lanes."""
        counter = self._counters.counter
        points = np.unique(counter[(counter >= POLL) & (counter < HOLD)])
        waits = []
        for point in points.tolist():
            warps = np.flatnonzero((counter == point).any(axis=1))
            waits.append((self._waits[point - POLL], warps, counter[warps] == point))
        return waits

    def _go_on(self, end: Terminator, warps: Ints, lanes: Flags, *, succeeds: bool) -> None:
        self._counters.send(warps, lanes, end.next)
        self._polls.finish(end, warps, lanes, succeeds=succeeds)

    def act(self) -> bool:
        """Let an asynchronous operation take effect, preferably one that lanes wait for: nobody can run."""
        awaited = {
            key
            for end, warps, lanes in self._waiting()
            if isinstance(end.detail, PhaseWait)
            for key, _, _ in self._polls.barriers(end, warps, lanes)
        }
        return self._machine.queue.act_for(awaited)

    def time_out(self) -> bool:
        """Fail each try_wait once, as after the hardware's time limit: nobody can run.

        Returns False if all have failed already.
        """
        if self._timed_out == self._machine.progress:
            return False
        self._timed_out = self._machine.progress
        waiting = [where for where in self._waiting() if isinstance(where[0].detail, PhaseWait)]
        for end, warps, lanes in waiting:
            self._polls.count(end, -len(warps))
            self._go_on(end, warps, lanes, succeeds=False)
        return bool(waiting)

    def describe(self) -> list[str]:
        """Describe which warps wait where and for what, for messages."""
        parts = []
        for end, warps, lanes in self._waiting():
            here = np.isin(np.arange(len(self._counters.first)), warps)
            what = self._polls.describe(end, warps, lanes)
            parts.append(f"{who(self._machine.geometry, here)} waits {what} ({end_instruction(end).location})")
        return parts
