"""Adds up the emulator's counters of several launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from matmill.emulator import Counters, LineCounts, Report


def together(reports: Sequence[Report]) -> Report:
    """Add up the counters, in total and by line, and concatenate the hazards of all launches.

    >>> together([Report(Counters(ffma=2, atomics=1)), Report(Counters(ffma=3))]).counters.ffma
    5
    """
    if len(reports) == 1:
        return reports[0]
    by_line: dict[str, list[LineCounts]] = {}
    for report in reports:
        for line, counts in report.by_line.items():
            by_line.setdefault(line, []).append(counts)
    return Report(
        Counters(**_sums(Counters, [report.counters for report in reports])),
        tuple(hazard for report in reports for hazard in report.hazards),
        {line: LineCounts(**_sums(LineCounts, counts)) for line, counts in by_line.items()},
    )


def _sums(kind: type[LineCounts], counts: Iterable[LineCounts]) -> dict[str, int]:
    totals = list(counts)
    return {field.name: sum(getattr(one, field.name) for one in totals) for field in fields(kind)}
