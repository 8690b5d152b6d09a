"""Summary of an emulated ladder: each rung's idea, bound and recorded rate, and what to conclude from them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from matmill.arch import get
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
#: The units of bounds, in words.
_UNITS = {
    "loads": "requests to L1",
    "banks": "passes over shared memory",
    "issue slots": "instructions per clock",
    "FMA": "the FMA units",
    "mma.sync": "the tensor cores by mma.sync",
    "tensor cores": "by wgmma",
    "wgmma operands": "its reads of shared memory",
    "L2": "copies by TMA",
    "DRAM": "memory",
}
#: A step of less than this factor is no gain.
_GAIN = 1.1


def summary(outcome: Outcome, columns: int = _COLUMNS) -> Iterator[RenderableType]:
    """Yield the table of ideas, bounds and recorded rates, and the conclusions in lines of at most ``columns``.

    The rows must have bounds.
    """
    run, subject = recorded(outcome.ladder), outcome.subject
    ideas = {rung.label: rung.idea for rung in LADDERS[outcome.ladder].rows}
    title = f"{outcome.ladder}: {subject.title(outcome.problem)}, emulated"
    headings = [("\nrung", "left"), ("\nidea", "left"), ("\nat most", "left")]
    if run is not None:
        title += f"; rates: {run.sizes} on an {run.gpu}"
        headings += [(f"\n{subject.unit}", "right"), (f"of\n{run.library}", "right")]
    rows = [[row.rung, ideas[row.rung], _limit(row), *_rates(row, run)] for row in outcome.rows]
    yield table(title, headings, rows)
    yield Text()
    right = sum(row.ok is True for row in outcome.rows)
    lines = [f"{right} of {len(outcome.rows)} right: every element within its bound, no race."]
    lines += [] if run is None else _conclusions(outcome, ideas, run)
    yield Text("\n".join(textwrap.fill(line, columns) for line in [*lines, _legend(outcome)]))


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
    """Yield sentences: the whole way, the largest steps, a counter that stood out and was cured, and what is left.

    A step leads to a rung from the one that it grew from, whether that one ran or not.
    """
    timed = [row for row in outcome.rows if row.rung in run.rates]
    if not timed:
        return
    first, last = timed[0].rung, timed[-1].rung
    rate = {rung: figures[0] for rung, figures in run.rates.items()}
    if len(timed) > 1:
        shares = [_share(run.rates[rung][1]) for rung in (first, last)]
        times = units.digits(rate[last] / rate[first])
        yield f"{first} to {last}: {times} times the rate, from {shares[0]} to {shares[1]} of {run.library}."
    bases = {row.rung: LADDERS[outcome.ladder].base(row.rung) for row in timed}
    base = {rung: before.label for rung, before in bases.items() if before is not None and before.label in rate}
    gains = {rung: rate[rung] / rate[before] for rung, before in base.items()}
    largest = sorted((rung for rung in gains if gains[rung] >= _GAIN), key=lambda rung: -gains[rung])[:2]
    if largest:
        steps = " and ".join(
            f"{ideas[each]} ({each}, {units.digits(gains[each])} times {base[each]})" for each in largest
        )
        yield f"The largest step{'s' if len(largest) > 1 else ''}: {steps}."
    rows = {row.rung: row for row in timed}
    cured = [
        rung
        for rung in gains
        if rung not in largest and gains[rung] >= _GAIN and _mark(rows.get(base[rung])) and not _mark(rows[rung])
    ]
    if cured:
        rung = max(cured, key=lambda each: gains[each])
        mark, times = _mark(rows[base[rung]]), units.digits(gains[rung])
        yield f"{base[rung]} stands out ({mark} the least): {rung}, without that, is {times} times as fast."
    peak = outcome.subject.peak(outcome.problem, outcome.arch)
    if peak is not None and timed[-1].bound:
        reached, limit = units.percent(rate[last] * 1e12 / peak), units.percent(timed[-1].bound["fraction"])
        yield f"{last} reaches {reached} of the peak where its counters allow {limit}: latency and power take the rest."


def _mark(row: Row | None) -> str:
    return str(row.bound["mark"]) if row and row.bound else ""


def _legend(outcome: Outcome) -> str:
    """Explain the column of bounds: what they are shares of, and the units that it names."""
    subject, run, gpu = outcome.subject, recorded(outcome.ladder), outcome.arch.title
    # An H100 has the H200's peaks of arithmetic: then the table is about one GPU.
    if run and subject.peak(outcome.problem, get(run.gpu)) == subject.peak(outcome.problem, outcome.arch):
        gpu = run.gpu
    named = {Bound(**row.bound).unit for row in outcome.rows if row.bound}
    meant = "; ".join(f"{unit}: {words}" for unit, words in _UNITS.items() if unit in named)
    marks = next((f" {mark}!: that many times the least." for mark in map(_mark, outcome.rows) if mark), "")
    return (
        f"at most: share of the {subject.limit_name} of an {gpu} that the counters allow, and what "
        f"sets it ({meant}).{marks}"
    )
