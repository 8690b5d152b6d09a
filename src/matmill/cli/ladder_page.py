"""The page of a ladder's run: its tables, its plot, and each rung's change to the source of the rung below."""

from __future__ import annotations

import difflib
import io
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from matmill.cli import tables
from matmill.jit.source import read_source
from matmill.kernel import Rung
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.emulated import events_of
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.page.document import bar, document, table
from matmill.page.timeline import timeline_figure

#: Extents of the product whose timeline a page shows: several tiles, and more steps of k than stages.
_SIDES = (256, 256, 384)


def page(outcome: Outcome) -> str:
    """Return a page without external resources."""
    where = f"on {outcome.arch.title}" if outcome.on == "gpu" else f"emulated for {outcome.arch.title}"
    title = f"{outcome.ladder} ladder, {outcome.subject.format_sizes(outcome.problem)}, {where}"
    sections = (
        ("results", "Results", "".join(map(_html, tables.report(outcome)))),
        ("figures", "Figures", _picture(outcome) or _bars(outcome)),
        ("rungs", "What each rung changes", "".join(_rungs(outcome))),
    )
    return document(title, sections)


def _html(part: RenderableType) -> str:
    """Return a table or a text for the terminal as HTML."""
    if isinstance(part, Table):
        sides = [(str(column.header), column.justify == "right") for column in part.columns]
        cells = [[escape(_plain(cell)) for cell in column.cells] for column in part.columns]
        caption = f"<h3>{escape(_plain(part.title))}</h3>" if part.title else ""
        return caption + table(sides, zip(*cells, strict=True))
    text = _plain(part).strip()
    return "".join(f"<p>{escape(line)}</p>" for line in text.splitlines() if line)


def _plain(part: RenderableType | None) -> str:
    """Return text for the terminal without colours."""
    if isinstance(part, Text):
        return part.plain
    out = io.StringIO()
    Console(file=out, width=10_000, no_color=True, highlight=False).print(part or "", end="")
    return out.getvalue().rstrip()


def _picture(outcome: Outcome) -> str:
    """Return the plot of ``--plot``, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ladder.svg"
        draw(outcome, path)
        text = path.read_text(encoding="utf-8")
    svg = text[text.index("<svg") :]
    return f'<div class="scroll" tabindex="0" role="region" aria-label="figure" style="background:#fff">{svg}</div>'


def _bars(outcome: Outcome) -> str:
    """Return the figures as bars: rates on a GPU, else the emulator's counts."""
    if outcome.on == "gpu":
        rates = [(row.rung, getattr(row, outcome.subject.rate) or 0.0) for row in outcome.rows]
        return _bar_table(outcome.subject.unit, rates)
    names = ("global_load_sectors", "shared_load_wavefronts", "instructions")
    rows = [(row.rung, row.counters) for row in outcome.rows if row.counters]
    parts = [
        _bar_table(name.replace("_", " "), [(rung, counts.get(name, 0)) for rung, counts in rows]) for name in names
    ]
    return "".join(parts)


def _bar_table(heading: str, rows: Sequence[tuple[str, float]]) -> str:
    most = max((value for _, value in rows), default=0)
    cells = [(escape(name), bar(value, most, f"{value:,.4g}"), f"{value:,.6g}") for name, value in rows]
    return table((("rung", False), (heading, False), ("", True)), cells) if rows else ""


def _rungs(outcome: Outcome) -> Iterator[str]:
    """Yield each rung's idea and prediction, its timeline if it has mbarriers, and its source's changes."""
    known = {rung.label: rung for rung in LADDERS[outcome.ladder].rungs}
    below: tuple[str, list[str]] | None = None
    for row in outcome.rows:
        rung = known.get(row.rung)
        if rung is None:
            continue
        source = read_source(rung.kernel.package, rung.kernel.file).splitlines()
        if below is None:
            summary, text = "its source", "\n".join(map(escape, source))
        else:
            summary, text = f"changes to {below[0]}", _difference(below[1], source)
        below = (row.rung, source)
        figure = _timeline(outcome, rung) if (row.counters or {}).get("mbarrier_waits") else ""
        yield (
            f'<h3 id="rung-{escape(row.rung)}">{escape(row.rung)}</h3><p>{escape(rung.changes)}</p>'
            f"<p>Predicted: {escape(rung.predicts)}</p>{figure}<details><summary>{escape(summary)}</summary>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="source"><pre>{text}</pre></div></details>'
        )


def _timeline(outcome: Outcome, rung: Rung[Any]) -> str:
    """Return the timeline of a rung's first block, at a size that all of them take."""
    subject = outcome.subject
    sides = (side for _, side in zip(subject.sizes(outcome.problem), _SIDES, strict=False))
    return timeline_figure(rung.label, events_of(rung, subject, subject.resized(outcome.problem, *sides)))


def _difference(before: list[str], after: list[str]) -> str:
    """Return a unified diff as HTML, with additions and deletions marked for screen readers too."""
    parts = []
    for line in list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]:
        tag = {"+": "ins", "-": "del"}.get(line[:1])
        parts.append(f"<{tag}>{escape(line)}</{tag}>" if tag else escape(line))
    return "\n".join(parts) or "the same source with other constants"
