"""What an emulated ladder shows: each rung's idea, bound and recorded rate, and what to conclude from them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill.bench import units
from matmill.cli.console import table
from matmill.cli.tables import verdict
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.bound import Bound
from matmill.ladders.runner.recorded import Recorded, recorded
from matmill.ladders.runner.results import Outcome, Row

_COLUMNS = 80
#: Above this share of a library's rate, a factor reads better than percent.
_TIMES = 2
#: A step of less than this factor is no gain.
_GAIN = 1.1


def summary(outcome: Outcome) -> Iterator[RenderableType]:
    """Yield the table of ideas, bounds and recorded rates, and the conclusions; the rows must have bounds."""
    run, subject = recorded(outcome.ladder), outcome.subject
    ideas = {rung.label: rung.idea for rung in LADDERS[outcome.ladder].rows}
    title = f"{outcome.ladder}: {subject.title(outcome.problem)}, emulated"
    columns = [("\nrung", "left"), ("\nidea", "left"), ("\nat most", "left")]
    if run is not None:
        title += f"; rates: {run.sizes} on an {run.gpu}"
        columns += [(f"\n{subject.unit}", "right"), (f"of\n{run.library}", "right")]
    rows = [[row.rung, ideas[row.rung], _limit(row), *_rates(row, run)] for row in outcome.rows]
    yield table(title, columns, rows)
    yield Text()
    right = sum(row.ok is True for row in outcome.rows)
    lines = [f"{right} of {len(outcome.rows)} right: every element within its bound, no race."]
    lines += [] if run is None else _conclusions(outcome, ideas, run)
    yield Text("\n".join(textwrap.fill(line, _COLUMNS) for line in [*lines, _legend(outcome)]))


def _limit(row: Row) -> str:
    """Format the rung's bound, or what is wrong with its result."""
    if row.ok is not True:
        return verdict(row)
    return str(Bound(**row.bound)) if row.bound else "-"


def _rates(row: Row, run: Recorded | None) -> list[str]:
    if run is None:
        return []
    rate, share = run.rates.get(row.rung, (None, None))
    return ["-" if rate is None else units.digits(rate), "-" if share is None else _share(share)]


def _share(share: float) -> str:
    """Format a share of a library's rate.

    >>> _share(0.113), _share(12.5)
    ('11.3%', '12.5x')
    """
    return f"{share:.3g}x" if share > _TIMES else units.percent(share)


def _conclusions(outcome: Outcome, ideas: Mapping[str, str], run: Recorded) -> Iterator[str]:
    """Yield up to three sentences: the whole way, the largest steps, and a counter that stood out and was cured.

    Where the largest steps cured all that stood out, the third says what the last rung leaves of its bound.
    """
    timed = [row for row in outcome.rows if row.rung in run.rates]
    if len(timed) < 2:
        return
    rate = {row.rung: run.rates[row.rung][0] for row in timed}
    first, last = timed[0].rung, timed[-1].rung
    shares = [_share(run.rates[rung][1]) for rung in (first, last)]
    yield (
        f"{first} to {last}: {units.digits(rate[last] / rate[first])} times the rate, from {shares[0]} to {shares[1]} "
        f"of {run.library}."
    )
    gains = {after.rung: rate[after.rung] / rate[before.rung] for before, after in pairwise(timed)}
    largest = sorted((rung for rung in gains if gains[rung] >= _GAIN), key=lambda rung: -gains[rung])[:2]
    if largest:
        steps = " and ".join(f"{ideas[rung]} ({rung}, {units.digits(gains[rung])} times)" for rung in largest)
        yield f"The largest step{'s' if len(largest) > 1 else ''}: {steps}."
    cured = [
        (before, after)
        for before, after in pairwise(timed)
        if _mark(before) and not _mark(after) and after.rung not in largest and gains[after.rung] >= _GAIN
    ]
    peak = outcome.subject.peak(outcome.problem, outcome.arch)
    if cured:
        before, after = max(cured, key=lambda pair: gains[pair[1].rung])
        yield (
            f"{before.rung} stands out ({_mark(before)}): without that {after.rung} is "
            f"{units.digits(gains[after.rung])} times as fast."
        )
    elif peak is not None and timed[-1].bound:
        share, limit = units.percent(rate[last] * 1e12 / peak), units.percent(timed[-1].bound["fraction"])
        yield f"{last} reaches {share} of the peak where its counters allow {limit}: latency takes the rest."


def _mark(row: Row) -> str:
    return str(row.bound["mark"]) if row.bound else ""


def _legend(outcome: Outcome) -> str:
    subject: Any = outcome.subject
    return (
        f"at most: share of the {subject.limit_name} ({outcome.arch.title}) that the counters allow, and the unit that "
        "sets it, with the factor of a counter that stands out!"
    )
