"""Compare whole training steps with and without matmill's part, so that no program gets slower.

Times of single products do not say what a program gains: where the host is the limit, a product that takes the GPU less
time saves nothing, and what its derivative costs in Python is lost. So the first steps of a program run interleaved:
with all of matmill's products, with those that save most, and with none. The times on the GPU's own clock decide.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from math import inf
from typing import Any, Protocol

#: The least seconds that a recorded product with its gradients must save, by arm of the comparison. Recording it costs
#: the host more than torch's own does: 15 µs at best, 100 µs and more on a host that is slow or busy.
ARMS = (15e-6, 100e-6, inf)
#: Steps without a new decision before the comparison begins; steps of an arm in a row, the first of which does not
#: count; and rounds of all arms.
_SETTLED, _IN_A_ROW, _ROUNDS = 3, 5, 3
#: An arm with more of matmill must save this share of a step, against the arm with less.
_LEAST_GAIN = 0.003


class Clock(Protocol):
    """A GPU's clock."""

    def mark(self) -> Any:
        """Return a mark that the GPU sets when it has done all work so far."""

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds between two marks, waiting for the last one."""


class StepTrial:
    """The comparison of arms over the first steps of a program.

    ``least_gain`` is that of the arm in force. ``seconds`` are the medians of a step by arm, once they are known.
    """

    def __init__(self, clock: Clock) -> None:
        self.least_gain = ARMS[0]
        self.seconds: dict[float, float] = {}
        self._clock = clock
        self._settled = self._done = 0
        self._decisions = -1
        self._marks: list[list[Any]] = []

    @property
    def over(self) -> bool:
        """True when the arm is chosen for good."""
        return bool(self.seconds)

    @property
    def result(self) -> tuple[float, float] | None:
        """Seconds of a step in the arm that was chosen and without matmill, or None before the choice."""
        return (self.seconds[self.least_gain], self.seconds[ARMS[-1]]) if self.over else None

    def step(self, decisions: int) -> None:
        """Count a step, after which that many products had been decided."""
        if self.over:
            return
        if decisions != self._decisions:  # something was timed in this step
            self._decisions, self._settled, self._done, self._marks = decisions, 0, 0, []
            self.least_gain = ARMS[0]
            return
        self._settled += 1
        if self._settled < _SETTLED:
            return
        if self._done % _IN_A_ROW == 0:
            if self._done == _ROUNDS * len(ARMS) * _IN_A_ROW:
                self._choose()
                return
            self.least_gain = ARMS[self._done // _IN_A_ROW % len(ARMS)]
            self._marks.append([])
        self._done += 1
        self._marks[-1].append(self._clock.mark())

    def _choose(self) -> None:
        """Take the arm with the shortest steps; of arms that are about equal, the one with less of matmill."""
        samples: dict[float, list[float]] = {arm: [] for arm in ARMS}
        for block, marks in enumerate(self._marks):
            samples[ARMS[block % len(ARMS)]] += [self._clock.between(*pair) for pair in pairwise(marks[1:])]
        self.seconds = {arm: statistics.median(times) for arm, times in samples.items()}
        best = ARMS[-1]
        for arm in ARMS[-2::-1]:
            if self.seconds[arm] <= (1 - _LEAST_GAIN) * self.seconds[best]:
                best = arm
        self.least_gain = best
        self._marks = []
