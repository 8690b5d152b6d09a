"""What the reports of recorded comparisons have in common: an entry's rows and rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The field of a row that holds the median of single calls, in seconds.
MEDIAN = "median"


@dataclass(frozen=True)
class Comparable:
    """One entry of a recorded comparison: a problem, and the rows of ours and of each library."""

    record: Mapping[str, Any]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Ours and each library's row, by name."""
        return {row["name"]: row for row in self.record["rows"]}

    def rate(self, name: str) -> float:
        """Least bytes that must move, over the time."""
        return float(self.record["bytes"] / self.rows[name][MEDIAN])
