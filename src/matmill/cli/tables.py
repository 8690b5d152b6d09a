"""A ladder's result as tables that fit 80 columns: what each rung took and needs, then what it did to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from matmill.bench import units
from matmill.bench.ladder.results import BaselineRow, Outcome, Row
from matmill.bench.ladder.subject import COPYING, MATRIX, MATRIX_PEAK, MOVING, TRAFFIC, Subject, subject_of
from matmill.bench.ladder.traffic import read_over_least, said, sectors_per_load
from matmill.bench.problems.inner import layout_of
from matmill.cli.console import table
from matmill.problem import Gemm

T = TypeVar("T")

_NONE = "-"
_HAZARDS_SHOWN = 3
_COUNTED = "Counted: 32-byte sectors per global request, shared-memory wavefronts"
_COUNTED_MOVED = "Counted: global requests of warps, 32-byte sectors per request, shared-memory wavefronts"
_COUNTED_TRAFFIC = "Counted in all launches: bytes read over the least, 32-byte sectors per global request, atomics"


def report(outcome: Outcome) -> Iterable[RenderableType]:
    """The tables and remarks of one run, in reading order."""
    title = f"{outcome.ladder}: {_asked(outcome)}"
    if any(row.phases for row in outcome.rows):
        yield _phase_table(title, outcome)
    elif outcome.on == "gpu":
        yield _time_table(title, outcome)
    else:
        yield _resource_table(title, outcome)
    if any(row.counters for row in outcome.rows):
        yield Text()
        yield _counted(outcome)
    yield Text()
    yield Text("\n".join(_remarks(outcome)))


def _counted(outcome: Outcome) -> Table:
    """What the emulator counted, as the ladder's subject wants it told."""
    subject = subject_of(outcome.ladder)
    if subject is MOVING:
        return _moved_table(outcome.rows)
    if subject is TRAFFIC:
        return _traffic_table(outcome.rows)
    return _counter_table(outcome.rows, "hmma" if subject is MATRIX else "ffma")


def _asked(outcome: Outcome) -> str:
    """The problem, and whose figures percentages refer to."""
    problem, arch, subject = outcome.problem, outcome.arch, outcome.subject
    sizes = f"{subject.said(problem)} {problem.dtype.name}"
    if isinstance(problem, Gemm):
        if "bytes" not in subject.own:
            return f"{sizes}, {'matrix ' if subject is MATRIX else ''}peaks of the {arch.title}"
        sizes = f"{sizes}, F {layout_of(problem)}-major"
    else:
        sizes = f"x {problem.n}x{problem.m}, y {problem.m}x{problem.n} {problem.dtype.name}"
    limit = _or(subject.peak(problem, arch), units.count)
    if outcome.copy_bytes_per_s is None:
        return f"{sizes}, {limit}B/s by the data sheet of the {arch.title}"
    return f"{sizes}, a copy moves {limit}B/s"


def verdict(row: Row) -> str:
    """What the check found: ``ok``, ``WRONG``, ``RACE``, ``HAZARD``, or a dash for a rung that did not run.

    >>> verdict(Row("naive", "S0", ok=False, error_ratio=float("nan")))
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
    """How many races the emulator reported."""
    return sum("race" in hazard["kind"] for hazard in row.hazards)


def listing(ladders: Mapping[str, Sequence[Any]]) -> RenderableType:
    """Every ladder with its rungs, their sources, and what each changes."""
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


#: Headings of the column that holds fractions of a subject's limit.
_LIMITS = {"peak": "% peak", MATRIX_PEAK: "% peak", COPYING: "% copy"}


def _time_table(title: str, outcome: Outcome) -> Table:
    subject = outcome.subject
    moved = ("moved",) if "bytes" in subject.own else ()
    limit = _LIMITS.get(subject.limit_name, "% bw")
    columns = [("rung", "left"), *_right("time", *moved, subject.unit, limit, "% lib"), *_NEEDS]
    rows = [[_name(row), *_rates(row, subject), *_needs(row)] for row in outcome.rows]
    built = table(title, columns, rows)
    built.add_section()
    for base in outcome.baselines:
        built.add_row(base.name, *_rates(base, subject), "", "", "", "ok" if base.ok else "WRONG")
    return built


def _resource_table(title: str, outcome: Outcome) -> Table:
    columns = [("rung", "left"), ("source", "left"), *_NEEDS, ("error/bound", "right")]
    rows = [[_name(row), row.source, *_needs(row), _or(row.error_ratio, units.digits)] for row in outcome.rows]
    return table(title, columns, rows)


def _phase_table(title: str, outcome: Outcome) -> Table:
    names = list(dict.fromkeys(name for row in outcome.rows for name in row.phases or {}))
    columns = [("rung", "left"), *_right("wall", *names), ("check", "right")]
    rows = []
    for row in outcome.rows:
        cells = [_phase(row.phases.get(name)) if row.phases else _NONE for name in names]
        rows.append([_name(row), _or(row.seconds, units.seconds), *cells, verdict(row)])
    return table(title, columns, rows)


def _phase(phase: Mapping[str, Any] | None) -> str:
    """One phase: its time and rate where measured, else the bytes it moves."""
    if phase is None:
        return _NONE
    if phase["seconds"] is None:
        return f"{units.count(phase['bytes'])}B" if phase["bytes"] else _NONE
    lines = [units.seconds(phase["seconds"])]
    if phase["bytes"]:
        lines.append(f"{units.count(phase['bytes'] / phase['seconds'])}B/s")
    elif phase["flops"]:
        lines.append(f"{units.count(phase['flops'] / phase['seconds'])}FLOP/s")
    return "\n".join(lines)


def _counter_table(rows: Sequence[Row], arithmetic: str) -> Table:
    """What rungs did to memory, and how often they did the ``arithmetic`` that counts."""
    columns = [
        ("rung", "left"),
        *_right(
            f"\n{arithmetic.upper()}",
            "sect/\nload",
            "sect/\nstore",
            "shared load\nideal/actual",
            "shared store\nideal/actual",
        ),
        *_right("\nbarriers", "\nraces"),
    ]
    return table(_COUNTED, columns, [[_name(row), *_counts(row, arithmetic)] for row in rows if row.counters])


def _counts(row: Row, arithmetic: str) -> list[str]:
    c = row.counters or {}
    return [
        units.count(c[arithmetic]),
        said(sectors_per_load(c)),
        units.ratio(c["global_store_sectors"], c["global_store_requests"]),
        _pair(c["shared_load_wavefronts_ideal"], c["shared_load_wavefronts"]),
        _pair(
            c["shared_store_wavefronts_ideal"] + c["cp_async_shared_wavefronts"],
            c["shared_store_wavefronts"] + c["cp_async_shared_wavefronts"],
        ),
        units.count(c["barriers"]),
        str(races(row)),
    ]


def _traffic_table(rows: Sequence[Row]) -> Table:
    headings = _right("read/\nleast", "sect/\nload", "sect/\nstore", "\natomics", "\nbarriers", "\nraces")
    cells = [
        [
            _name(row),
            units.digits(read_over_least(row.counters, row.bytes)),
            said(sectors_per_load(row.counters)),
            units.ratio(row.counters["global_store_sectors"], row.counters["global_store_requests"]),
            *(units.count(row.counters[name]) for name in ("atomics", "barriers")),
            str(races(row)),
        ]
        for row in rows
        if row.counters
    ]
    return table(_COUNTED_TRAFFIC, [("rung", "left"), *headings], cells)


def _moved_table(rows: Sequence[Row]) -> Table:
    """What a warp's accesses to memory and to shared memory cost, and how many there are."""
    columns = [
        ("rung", "left"),
        *_right("\nloads", "sect/\nload", "\nstores", "sect/\nstore"),
        *_right("shared load\nideal/actual", "shared store\nideal/actual", "\nbarriers", "\nraces"),
    ]
    cells = [
        [
            _name(row),
            units.count(row.counters["global_load_requests"]),
            said(sectors_per_load(row.counters)),
            units.count(row.counters["global_store_requests"]),
            units.ratio(row.counters["global_store_sectors"], row.counters["global_store_requests"]),
            _pair(row.counters["shared_load_wavefronts_ideal"], row.counters["shared_load_wavefronts"]),
            _pair(row.counters["shared_store_wavefronts_ideal"], row.counters["shared_store_wavefronts"]),
            units.count(row.counters["barriers"]),
            str(races(row)),
        ]
        for row in rows
        if row.counters
    ]
    return table(_COUNTED_MOVED, columns, cells)


def _pair(ideal: int, actual: int) -> str:
    return f"{units.count(ideal)}/{units.count(actual)}" if actual else _NONE


def _remarks(outcome: Outcome) -> Iterable[str]:
    """Everything that a reader of the tables must know besides, one line each."""
    noted: dict[str, list[str]] = {}
    for row in outcome.rows:
        if row.note:
            noted.setdefault(row.note, []).append(row.rung)
    for note, rungs in noted.items():
        yield f"* {', '.join(rungs)}: {note}"
    for row in outcome.rows:
        for hazard in row.hazards[:_HAZARDS_SHOWN]:
            yield f"{row.rung} {hazard['kind']}: {hazard['message']} ({hazard['where']})"
        if len(row.hazards) > _HAZARDS_SHOWN:
            yield f"{row.rung} and {len(row.hazards) - _HAZARDS_SHOWN} more; --json shows all"
    if outcome.on != "gpu":
        subject = outcome.subject
        for base in outcome.baselines:
            yield f"{base.name} took {units.seconds(base.seconds)}, {subject.say(getattr(base, subject.rate))}"
    yield from outcome.notes


def _name(row: Row) -> str:
    """The rung's name, starred where a remark below the table belongs to it."""
    return f"{row.rung} *" if row.note else row.rung


_NEEDS = [("regs", "right"), ("shared", "right"), ("occup.", "right"), ("check", "right")]


def _needs(row: Row) -> list[str]:
    return [_or(row.registers, str), _or(row.shared_bytes, str), _or(row.occupancy, units.percent), verdict(row)]


def _rates(row: Row | BaselineRow, subject: Subject[Any]) -> list[str]:
    library = row.library_fraction if isinstance(row, Row) else None
    moved = [_or(row.bytes, lambda count: f"{units.count(count)}B")] if "bytes" in subject.own else []
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
