"""A sweep as bars: what the best rungs reach at each size of a library's rate or of the GPU's limit."""

from __future__ import annotations

from pathlib import Path

from matmill.bench import units
from matmill.ladders.runner.bars import Bar, Group, draw_bars, full_rate, groups_of, rate, share_text
from matmill.ladders.runner.sweep import Sweep

#: The library's own kernel, which is shown beside the best rungs.
_PRODUCTION = "production"


def draw_sweep(sweep: Sweep, path: Path, source: str = "") -> None:
    """Draw ``sweep`` into ``path``; for the suffix and ``source`` see :func:`.style.save`."""
    notes = [f"{sweep.first.ladder} ladder, m = n = k, on {sweep.first.arch.title}: the best rungs at the last size"]
    draw_bars(sweep_sentence(sweep), notes, sweep_groups(sweep), path, source)


def sweep_sentence(sweep: Sweep) -> str:
    """Return what the bars show."""
    groups = sweep_groups(sweep)
    if not groups:
        return "No rung has a right result"
    spans = []
    for one in groups:
        shares = [bar.share for bar in one.bars if bar.ok]
        ends = dict.fromkeys(share_text(share) for share in (min(shares, default=0), max(shares, default=0)))
        spans.append(f"{one.name} at {' to '.join(ends)}")
    return f"{', '.join(spans)} of {groups[0].full}, from {sweep.sizes[0]} to {sweep.sizes[-1]}"


def sweep_groups(sweep: Sweep) -> list[Group]:
    """Return the rungs that are the best of their group at the last size, with a bar for each size."""
    best = {bar.label for group in groups_of(sweep.outcomes[-1]) if (bar := group.best())} | {_PRODUCTION}
    groups = []
    for curve in (curve for curve in sweep.curves() if curve.ours and curve.name in best):
        bars = []
        for row, outcome in zip(curve.rows, sweep.outcomes, strict=True):
            if row is not None and row.ok is not None:
                reached, full = rate(row, outcome), full_rate(outcome)[1] or 1.0
                words = f"{units.digits(reached)} {outcome.subject.unit}"
                bars.append(Bar(str(outcome.problem.n), reached / full, words, ok=row.ok))
        if bars:
            last = sweep.outcomes[-1]
            groups.append(Group(curve.name, full_rate(last)[0], "at that size", bars, last.problem.dtype.name))
    return groups
