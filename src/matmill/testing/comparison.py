"""Two emulated launches beside each other: counters, advice that went and came, results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from matmill.testing.findings import different, usual_tolerance
from matmill.testing.report import LaunchReport
from matmill.testing.verdict import Advice

#: Counts of what costs time. Of the others (arithmetic, bytes, the fewest wavefronts) more is neither good nor bad.
_COSTS = re.compile(r"\w+_(requests|sectors|wavefronts|waits)|instructions|atomics|barriers")


@dataclass(frozen=True)
class Comparison:
    """Two launches of the same arguments; ``results`` has the elements that differ, by the array's name."""

    first: LaunchReport
    second: LaunchReport
    results: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """True if both launches are, and their results are equal but for rounding."""
        return self.first.ok and self.second.ok and not any(self.results.values())

    def counters(self) -> dict[str, tuple[int, int, str]]:
        """Return the counts that differ, of both launches, with "better", "worse" or ""."""
        one, two = self.first.counters.as_dict(), self.second.counters.as_dict()
        return {
            name: (one[name], two[name], _judged(name, one[name], two[name])) for name in one if one[name] != two[name]
        }

    def advice(self) -> dict[str, list[Advice]]:
        """Return the advice whose rules speak of the first launch alone ("solved"), of the second ("new"), of both."""
        before, after = ({advice.rule for advice in each.verdict} for each in (self.first, self.second))
        return {
            "solved": [advice for advice in self.first.verdict if advice.rule not in after],
            "new": [advice for advice in self.second.verdict if advice.rule not in before],
            "still": [advice for advice in self.second.verdict if advice.rule in before],
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        rows = self.counters()
        return {
            "ok": self.ok,
            "a": self.first.as_dict(),
            "b": self.second.as_dict(),
            "counters": {name: [first, second] for name, (first, second, _) in rows.items()},
            "better": [name for name, row in rows.items() if row[2] == "better"],
            "worse": [name for name, row in rows.items() if row[2] == "worse"],
            "advice": {kind: [asdict(each) for each in advice] for kind, advice in self.advice().items()},
            "results": dict(self.results),
        }


def compared(
    first: tuple[LaunchReport, Mapping[str, Any]], second: tuple[LaunchReport, Mapping[str, Any]]
) -> Comparison:
    """Compare two reports, each with its launch's arrays by name."""
    (one, before), (two, after) = first, second
    results = {
        name: int(different(array, after[name], usual_tolerance(array.dtype)).sum())
        for name, array in before.items()
        if isinstance(array, np.ndarray) and array.flags.writeable and not one.faulted and not two.faulted
    }
    return Comparison(one, two, results)


def _judged(name: str, first: int, second: int) -> str:
    return "" if not _COSTS.fullmatch(name) else "better" if second < first else "worse"
