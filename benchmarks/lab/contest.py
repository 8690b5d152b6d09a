"""Many competitors timed in few rounds: all once, and then those that the first round leaves a chance.

A search over hundreds of configurations cannot give each the rounds that a published figure gets. What is 1.5 times
slower than the best in the first round is left there; the others are timed again, in a new random order each round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from matmill.runtime.clock import Competitor, StreamHandle

#: Seconds of one run, by whatever clock.
Once = Callable[[Callable[[StreamHandle], None]], float]


@dataclass(frozen=True)
class Rules:
    """How many rounds there are, and what of the best time is too slow for another one.

    A competitor that takes ``long`` seconds gets no more than ``few`` rounds. No round begins after ``deadline``, by
    ``time.monotonic``.
    """

    rounds: int = 5
    slack: float = 1.5
    few: int = 3
    long: float = 0.02
    deadline: float = float("inf")


def contest(
    once: Once, competitors: Sequence[Competitor], rules: Rules, seed: int, always: Collection[str] = ()
) -> dict[str, list[float]]:
    """Return seconds of each competitor's runs, by name, in the order of its rounds; every one has at least one.

    Those that ``always`` names stay for all rounds that their length allows.
    """
    order = random.Random(seed)  # noqa: S311 — the order of runs, not a secret
    samples: dict[str, list[float]] = {competitor.name: [] for competitor in competitors}
    present = list(competitors)
    for index in range(rules.rounds):
        if index and time.monotonic() > rules.deadline:
            break
        order.shuffle(present)
        for competitor in present:
            samples[competitor.name].append(once(competitor.run))
        if index == 0:
            rivals = [s[0] for name, s in samples.items() if name not in always]
            most = rules.slack * min(rivals, default=0.0)
            present = [c for c in present if c.name in always or samples[c.name][0] <= most]
        if index + 1 >= rules.few:
            present = [c for c in present if samples[c.name][0] < rules.long]
    return samples
