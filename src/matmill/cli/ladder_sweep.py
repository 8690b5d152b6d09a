"""``matmill ladder … --sweep LOW..HIGH``: rates at sizes that double, as a table of sizes by rungs, JSON, or a plot."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from matmill.bench import units
from matmill.cli.console import table
from matmill.cli.options import size
from matmill.cli.tables import verdict
from matmill.errors import ArgumentError
from matmill.ladders.runner.results import BaselineRow, Row
from matmill.ladders.runner.sweep import Curve, Sweep, doubling


def sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of ``LOW..HIGH``: LOW, twice that, and so on up to HIGH.

    >>> sizes("512..2048")
    (512, 1024, 2048)
    """
    low, _, high = text.partition("..")
    try:
        first, last = size(low), size(high)
    except argparse.ArgumentTypeError:
        first, last = 1, 0
    if first > last:
        raise ArgumentError(
            argument="--sweep",
            got=repr(text),
            wanted="LOW..HIGH, the smaller size first",
            fix="For instance --sweep 512..16384.",
        )
    return doubling(first, last)


def check(args: argparse.Namespace, on: str) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` for options that contradict a sweep."""
    named = next((name for name in ("m", "n", "k") if getattr(args, name) is not None), None)
    if named is not None:
        raise ArgumentError(
            argument=f"--{named}",
            got=f"{getattr(args, named)} besides --sweep",
            wanted="one of the two: a sweep's products have m = n = k",
            fix="Omit one of them.",
        )
    if on != "gpu":
        raise ArgumentError(
            argument="--sweep",
            got="a run in the emulator",
            wanted="a GPU: a sweep shows rates, and the emulator counts but does not time",
            fix="Take one size, for instance --n 512, or a machine with a GPU.",
        )


def report(sweep: Sweep) -> Iterable[RenderableType]:
    """Yield the rates as a table, a line per rung or library, and the remarks on it."""
    first, subject = sweep.first, sweep.first.subject
    title = f"{first.ladder}: {subject.unit} at m = n = k, {first.problem.dtype.name}, {first.arch.title}"
    columns = [("rung", "left"), *((str(n), "right") for n in sweep.sizes)]
    curves = sweep.curves()
    built = table(title, columns, [])
    for ours in (True, False):
        for curve in (curve for curve in curves if curve.ours is ours):
            built.add_row(curve.name, *(_cell(row, subject.rate) for row in curve.rows))
        built.add_section()
    yield built
    yield Text()
    yield Text("\n".join(_remarks(sweep, curves)))


def _cell(row: Row | BaselineRow | None, rate: str) -> str:
    if row is None:
        return "-"
    if isinstance(row, BaselineRow):
        return units.digits(getattr(row, rate)) if row.ok else "WRONG"
    value = getattr(row, rate) if row.ok else None
    text = verdict(row) if value is None else units.digits(value)
    return f"{text} *" if row.note else text


def _remarks(sweep: Sweep, curves: Iterable[Curve]) -> Iterable[str]:
    for curve in curves:
        for n, row in zip(sweep.sizes, curve.rows, strict=True):
            if isinstance(row, Row) and row.note:
                yield f"* {curve.name} for {n}: {row.note}"
    # A note that every size has is printed once.
    notes = dict.fromkeys(note for outcome in sweep.outcomes for note in outcome.notes)
    yield from notes
