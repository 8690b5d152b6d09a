"""A ladder's result as tables of at most 88 columns: each rung's time and resources, then its memory traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from matmill.bench import units
from matmill.cli.console import table
from matmill.ladders.runner.results import BaselineRow, Outcome, Row
from matmill.ladders.runner.subject import COPYING, TENSOR_CORE_PEAK, Subject
from matmill.ladders.runner.traffic import async_units, read_over_least, sectors_in_words, sectors_per_load

T = TypeVar("T")

_NONE = "-"
_ASYNC_TITLE = "Counted of asynchronous units: wgmma, TMA, mbarriers"
_WAITS_TITLE = "Counted at waits for copies: how far ahead they were issued"
_WAITS = ("copy waits", "ready", "ahead", "hidden")
_HAZARDS_SHOWN = 3


def report(outcome: Outcome) -> Iterable[RenderableType]:
    """Yield the tables and remarks of one run, in reading order."""
    title = f"{outcome.ladder}: {_heading(outcome)}"
    if any(row.phases for row in outcome.rows):
        yield _phase_table(title, outcome)
    elif outcome.on == "gpu":
        yield _time_table(title, outcome)
    else:
        yield _resource_table(title, outcome)
    if any(row.counters for row in outcome.rows):
        yield Text()
        yield _counter_table(outcome.subject.counted_title, outcome.subject.counted, outcome.rows)
    asynchronous = outcome.subject.counted_async
    users = [row for row in outcome.rows if asynchronous and row.counters and async_units(row.counters)]
    if users:
        yield Text()
        yield _counter_table(_ASYNC_TITLE, asynchronous, users)
    waiting = [row for row in outcome.rows if row.counters and row.counters.get("copy_waits")]
    if waiting:
        yield Text()
        yield _counter_table(_WAITS_TITLE, _WAITS, waiting)
    yield Text()
    unit = ["error: the largest of an element, in units of 2^-24 |A||B|"] if outcome.subject.error_bound else []
    yield Text("\n".join([*unit, *remarks(outcome)]))


def _heading(outcome: Outcome) -> str:
    """Return the problem, and the arch that percentages refer to."""
    problem, arch, subject = outcome.problem, outcome.arch, outcome.subject
    words = subject.title(problem)
    if "bytes" not in subject.fields:
        return f"{words}, {subject.limit_name}s of the {arch.title}"
    limit = _or(subject.peak(problem, arch), lambda rate: units.quantity(rate, "B/s"))
    if outcome.copy_bytes_per_s is None:
        return f"{words}, {limit} by the data sheet of the {arch.title}"
    return f"{words}, a copy moves {limit}"


def verdict(row: Row) -> str:
    """Return the result of the check: ``ok``, ``WRONG``, ``RACE``, ``HAZARD``, or a dash for a rung that did not run.

    >>> verdict(Row("naive", "forum post", ok=False, error_ratio=float("nan")))
    'WRONG'
    """
    if row.ok is None:
        return _NONE
    if row.ok:
        return "ok"
    if row.error_ratio is None or not row.error_ratio <= 1:
        return "WRONG"
    return "RACE" if races(row) else "HAZARD"


def races(row: Row) -> int:
    """Return the number of races that the emulator reported."""
    return sum("race" in hazard["kind"] for hazard in row.hazards)


def listing(ladders: Mapping[str, Sequence[Any]]) -> RenderableType:
    """Return a table of all ladders with their rungs, the sources of these, and what each changes."""
    parts: list[RenderableType] = []
    for name, rungs in ladders.items():
        built = Table(title=name, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
        built.add_column(no_wrap=True)
        built.add_column(no_wrap=True)
        built.add_column()
        for rung in rungs:
            built.add_row(rung.label, rung.source.key, rung.changes)
        parts.append(built)
    return Group(*parts)


#: Headings of the column with fractions of a subject's limit.
_LIMITS = {"peak": "% peak", TENSOR_CORE_PEAK: "% peak", COPYING: "% copy"}


def _time_table(title: str, outcome: Outcome) -> Table:
    subject = outcome.subject
    moved = ("moved",) if "bytes" in subject.fields else ()
    limit = _LIMITS.get(subject.limit_name, "% bw")

    def error(row: Row | BaselineRow) -> list[str]:
        return [_error(row, outcome)] if subject.error_bound else []

    columns = [("rung", "left"), *_right("time", *moved, subject.unit, limit, "% lib"), *_NEEDS]
    columns += _right("error") if subject.error_bound else []
    rows = [[_name(row), *_rates(row, subject), *_needs(row), *error(row)] for row in outcome.rows]
    built = table(title, columns, rows)
    built.add_section()
    for base in outcome.baselines:
        built.add_row(base.name, *_rates(base, subject), "", "", "", "ok" if base.ok else "WRONG", *error(base))
    return built


def _resource_table(title: str, outcome: Outcome) -> Table:
    error = "error" if outcome.subject.error_bound else "error/bound"
    columns = [("rung", "left"), ("source", "left"), *_NEEDS, (error, "right")]
    rows = [[_name(row), row.source, *_needs(row), _error(row, outcome)] for row in outcome.rows]
    return table(title, columns, rows)


def _error(row: Row | BaselineRow, outcome: Outcome) -> str:
    """Format the largest error: in units of 2^-24 |A||B|, or over its bound where that is no multiple of them."""
    subject, sizes = outcome.subject, row.problem if isinstance(row, Row) else None
    if subject.error_bound is None or row.error_ratio is None:
        return _or(row.error_ratio, units.digits)
    return units.digits(row.error_ratio * subject.error_bound(subject.problem(sizes) if sizes else outcome.problem))


def _phase_table(title: str, outcome: Outcome) -> Table:
    names = list(dict.fromkeys(name for row in outcome.rows for name in row.phases or {}))
    columns = [("rung", "left"), *_right("wall", *names), ("check", "right")]
    rows = []
    for row in outcome.rows:
        cells = [_phase(row.phases.get(name)) if row.phases else _NONE for name in names]
        rows.append([_name(row), _or(row.seconds, units.seconds), *cells, verdict(row)])
    return table(title, columns, rows)


def _phase(phase: Mapping[str, Any] | None) -> str:
    """Format one phase: its time and rate if measured, else the bytes it moves."""
    if phase is None:
        return _NONE
    if phase["seconds"] is None:
        return units.quantity(phase["bytes"], "B") if phase["bytes"] else _NONE
    lines = [units.seconds(phase["seconds"])]
    if phase["bytes"]:
        lines.append(units.quantity(phase["bytes"] / phase["seconds"], "B/s"))
    elif phase["flops"]:
        lines.append(units.quantity(phase["flops"] / phase["seconds"], "FLOP/s"))
    return "\n".join(lines)


def _counter_table(title: str, names: Sequence[str], rows: Iterable[Row]) -> Table:
    """Return the table of the emulator's counts for ``rows``, with the columns ``names``."""
    shown = [_COUNTED[name] for name in names]
    columns = [("rung", "left"), *_right(*(heading for heading, _ in shown))]
    cells = [[_name(row), *(cell(row, row.counters) for _, cell in shown)] for row in rows if row.counters]
    return table(title, columns, cells)


def _sectors_per_store(_row: Row, c: Mapping[str, int]) -> str:
    return units.ratio(c["global_store_sectors"], c["global_store_requests"])


def _shared_loads(_row: Row, c: Mapping[str, int]) -> str:
    return _pair(c["shared_load_wavefronts_ideal"], c["shared_load_wavefronts"])


def _shared_stores(_row: Row, c: Mapping[str, int], copied: int = 0) -> str:
    return _pair(c["shared_store_wavefronts_ideal"] + copied, c["shared_store_wavefronts"] + copied)


def _count(counter: str) -> Callable[[Row, Mapping[str, int]], str]:
    return lambda _row, c: units.count(c[counter])


#: Columns of the emulator's counts, by their names in a subject: heading and cell.
_COUNTED: dict[str, tuple[str, Callable[[Row, Mapping[str, int]], str]]] = {
    "ffma": ("\nFFMA", _count("ffma")),
    "hmma": ("\nHMMA", _count("hmma")),
    "loads": ("\nloads", _count("global_load_requests")),
    "sectors per load": ("sect/\nload", lambda _row, c: sectors_in_words(sectors_per_load(c))),
    "stores": ("\nstores", _count("global_store_requests")),
    "sectors per store": ("sect/\nstore", _sectors_per_store),
    "read over least": ("read/\nleast", lambda row, c: units.digits(read_over_least(c, row.bytes))),
    "shared loads": ("shared load\nideal/actual", _shared_loads),
    "shared stores": ("shared store\nideal/actual", _shared_stores),
    "shared stores and cp.async": (
        "shared store\nideal/actual",
        lambda row, c: _shared_stores(row, c, c["cp_async_shared_wavefronts"]),
    ),
    "wgmma": ("\nwgmma", _count("gmma")),
    "operands": ("operand\nbytes", _count("wgmma_shared_bytes")),
    "TMA loads": ("TMA\nloads", _count("bulk_loads")),
    "bytes loaded": ("bytes\nloaded", _count("bulk_load_bytes")),
    "TMA stores": ("TMA\nstores", _count("bulk_stores")),
    "bytes stored": ("bytes\nstored", _count("bulk_store_bytes")),
    "mbarrier waits": ("mbarrier\nwaits", _count("mbarrier_waits")),
    "copy waits": ("\nwaits", _count("copy_waits")),
    "ready": ("data\nready", lambda _row, c: f"{c['copy_waits_ready'] / c['copy_waits']:.0%}"),
    "ahead": ("bytes\nahead", lambda _row, c: units.ratio(c["copy_bytes_in_flight"], c["copy_bytes_waited"])),
    "hidden": ("clocks\na wait", lambda _row, c: f"{c['copy_work_clocks'] / c['copy_waits']:,.0f}"),
    "atomics": ("\natomics", _count("atomics")),
    "barriers": ("\nbarriers", _count("barriers")),
    "races": ("\nraces", lambda row, _c: str(races(row))),
}


def _pair(ideal: int, actual: int) -> str:
    return f"{units.count(ideal)}/{units.count(actual)}" if actual else _NONE


def remarks(outcome: Outcome) -> Iterable[str]:
    """Yield the remarks on the tables, one line each."""
    noted: dict[str, list[str]] = {}
    for row in outcome.rows:
        if row.note:
            noted.setdefault(row.note, []).append(row.rung)
    for note, rungs in noted.items():
        yield f"* {', '.join(rungs)}: {note}"
    for row in outcome.rows:
        for hazard in row.hazards[:_HAZARDS_SHOWN]:
            yield f"{row.rung} {hazard['severity']}: {hazard['kind']}: {hazard['message']} ({hazard['where']})"
        if len(row.hazards) > _HAZARDS_SHOWN:
            yield f"{row.rung} and {len(row.hazards) - _HAZARDS_SHOWN} more; --json shows all"
    yield from outcome.notes


def _name(row: Row) -> str:
    """Return the rung's name, starred if a remark refers to it."""
    return f"{row.rung} *" if row.note else row.rung


_NEEDS = [("regs", "right"), ("shared", "right"), ("occup.", "right"), ("check", "right")]


def _needs(row: Row) -> list[str]:
    return [_or(row.registers, str), _or(row.shared_bytes, str), _or(row.occupancy, units.percent), verdict(row)]


def _rates(row: Row | BaselineRow, subject: Subject[Any]) -> list[str]:
    library = row.library_fraction if isinstance(row, Row) else None
    moved = [_or(row.bytes, lambda count: units.quantity(count, "B"))] if "bytes" in subject.fields else []
    return [
        _or(row.seconds, units.seconds),
        *moved,
        _or(getattr(row, subject.rate), units.digits),
        _or(getattr(row, subject.fraction), units.percent),
        _or(library, units.percent),
    ]


def _or(value: T | None, say: Callable[[T], str]) -> str:
    return _NONE if value is None else say(value)


def _right(*headings: str) -> list[tuple[str, str]]:
    return [(heading, "right") for heading in headings]
