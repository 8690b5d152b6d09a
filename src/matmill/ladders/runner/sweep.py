"""A ladder at several sizes: the rate of every rung and library over the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matmill.ladders.runner.results import BaselineRow, Outcome, Row


def doubling(low: int, high: int) -> tuple[int, ...]:
    """Return ``low``, twice that, and so on up to ``high``.

    >>> doubling(512, 4096), doubling(500, 1999)
    ((512, 1024, 2048, 4096), (500, 1000))
    """
    return tuple(low << step for step in range((high // low).bit_length()))


@dataclass(frozen=True)
class Curve:
    """One rung or library: its row at every size, or None for a missing one. ``ours`` tells rungs from libraries."""

    name: str
    rows: tuple[Row | BaselineRow | None, ...]
    ours: bool


@dataclass(frozen=True)
class Sweep:
    """Outcomes of one ladder, element type and GPU, by size."""

    outcomes: tuple[Outcome, ...]

    @property
    def first(self) -> Outcome:
        """The first outcome, for the ladder, GPU and element type that all share."""
        return self.outcomes[0]

    @property
    def sizes(self) -> list[int]:
        """The n of each product, which equals m and k."""
        return [outcome.problem.n for outcome in self.outcomes]

    @property
    def ok(self) -> bool:
        """False if a row of any size is wrong."""
        return all(outcome.ok for outcome in self.outcomes)

    def curves(self) -> list[Curve]:
        """Return every rung in the ladder's order, and every library after them."""
        rows = [{row.rung: row for row in outcome.rows} for outcome in self.outcomes]
        others = [{base.name: base for base in outcome.baselines} for outcome in self.outcomes]
        return [*_curves(rows, ours=True), *_curves(others, ours=False)]

    def as_list(self) -> list[dict[str, Any]]:
        """Return the outcomes as JSON."""
        return [outcome.as_dict() for outcome in self.outcomes]

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]]) -> Sweep:
        """Return the sweep of recorded outcomes, smallest first."""
        return cls(tuple(sorted(map(Outcome.from_dict, records), key=lambda outcome: outcome.problem.n)))


def _curves(by_size: Sequence[Mapping[str, Row | BaselineRow]], *, ours: bool) -> list[Curve]:
    names = dict.fromkeys(name for at_size in by_size for name in at_size)
    return [Curve(name, tuple(at_size.get(name) for at_size in by_size), ours) for name in names]
