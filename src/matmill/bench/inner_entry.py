"""One product of a recorded comparison of ``matmill.inner`` with libraries, and what follows from its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from matmill.bench.problems.inner import restored
from matmill.problem import Gemm

OURS, LIBRARY = "matmill.inner", "torch.mm"
#: How short products are timed, by their names in a record: seconds per call of a replayed graph and of a plain loop.
WAYS = ("graph", "plain")
#: How the others are: the median of single calls.
MEDIAN = "median"


@dataclass(frozen=True)
class Entry:
    """One product of a record: what was asked, and the rows by the library's name."""

    record: Mapping[str, Any]

    @property
    def problem(self) -> Gemm:
        """The product."""
        return restored(self.record["problem"])

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Each library's row, by its name."""
        return {row["name"]: row for row in self.record["rows"]}

    def read_share(self, name: str = OURS) -> float:
        """Least bytes over time over the bandwidth of reading measured in turns with it."""
        return float(self.record["bytes"] / self.rows[name][MEDIAN] / self.record["read_bytes_per_s"])

    def alone_share(self) -> float | None:
        """The time of reading as many bytes over ours; None where that was not measured."""
        seconds = self.record.get("read_seconds")
        return None if seconds is None else float(seconds / self.rows[OURS][MEDIAN])

    def fma_share(self, name: str = OURS) -> float:
        """Multiply-adds that the product needs over time over the data sheet's peak; half of them for a Gram matrix."""
        p = self.record["problem"]
        needed = (p["m"] + 1) / (2 * p["m"]) if p["layout"] == "gram" else 1.0
        return float(needed * self.record["flops"] / self.rows[name][MEDIAN] / self.record["fma_flops"])

    def floor_share(self) -> float:
        """Of whichever limit comes first: the larger of the two shares."""
        return max(self.read_share(), self.fma_share())

    def speedup(self, way: str = MEDIAN) -> float:
        """torch.mm's time over ours."""
        return float(self.rows[LIBRARY][way] / self.rows[OURS][way])

    def error_ratio(self) -> float:
        """Our error over torch.mm's; 1 where neither errs, infinite where our result is no number."""
        ours, theirs = (self.rows[name]["relative"] for name in (OURS, LIBRARY))
        if ours is None:
            return inf
        if not theirs:  # exact, or no number either
            return inf if ours else 1.0
        return float(ours / theirs)

    @property
    def ok(self) -> bool:
        """Whether our result is right."""
        return bool(self.rows[OURS]["ok"])
