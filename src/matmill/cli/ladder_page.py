"""The page of a ladder's run: its tables, its plot, and each rung's change to the rung that it grew from."""

from __future__ import annotations

import difflib
import io
import tempfile
from collections.abc import Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from matmill.cli import tables
from matmill.cli.ladder_summary import summary
from matmill.jit.source import read_source
from matmill.kernel import Rung
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.bars import share_text
from matmill.ladders.runner.emulated import events_of
from matmill.ladders.runner.ladder import Ladder
from matmill.ladders.runner.plot import bars_of, draw
from matmill.ladders.runner.results import Outcome
from matmill.page.document import bar, document, table
from matmill.page.timeline import timeline_figure

#: Columns of text that a page breaks by itself.
_ONE_LINE = 10_000
#: Extents of the product whose timeline a page shows: several tiles, and more steps of k than stages.
_SIDES = (256, 256, 384)


def page(outcome: Outcome) -> str:
    """Return a page without external resources."""
    where = f"on {outcome.arch.title}" if outcome.on == "gpu" else f"emulated for {outcome.arch.title}"
    title = f"{outcome.ladder} ladder, {outcome.subject.format_sizes(outcome.problem)}, {where}"
    sections = (
        (
            "conclusions",
            "Conclusions",
            "".join(map(_html, summary(outcome, _ONE_LINE))) if outcome.on == "emulator" else "",
        ),
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
    return f'<div class="scroll" tabindex="0" role="region" aria-label="figure">{svg}</div>'


def _bars(outcome: Outcome) -> str:
    """Return the bars of the plot as tables."""
    parts = []
    for group in bars_of(outcome):
        cells = [(escape(one.name), bar(one.share, group.most, one.words), share_text(one.share)) for one in group.bars]
        parts.append(table(((group.name, False), (f"{group.full} {group.rate}", False), ("", True)), cells))
    return "".join(parts)


def _rungs(outcome: Outcome) -> Iterator[str]:
    """Yield each rung's idea and prediction, its timeline if it has mbarriers, and its changes to another rung."""
    rungs = LADDERS[outcome.ladder].rungs
    known = {rung.label: rung for rung in rungs}
    for row in outcome.rows:
        rung = known.get(row.rung)
        if rung is None:
            continue
        base = _base(rung, LADDERS[outcome.ladder])
        if base is None:
            summary, text = "its source", "\n".join(map(escape, _source(rung)))
        else:
            summary, text = f"changes to {base.label}", _difference(_source(base), _source(rung))
        figure = _timeline(outcome, rung) if (row.counters or {}).get("mbarrier_waits") else ""
        yield (
            f'<h3 id="rung-{escape(row.rung)}">{escape(row.rung)}</h3><p>{escape(rung.changes)}</p>'
            f"<p>Predicted: {escape(rung.predicts)}</p>{figure}<details><summary>{escape(summary)}</summary>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="source"><pre>{text}</pre></div></details>'
        )


def _base(rung: Any, ladder: Ladder[Any]) -> Any:
    """Return the rung of another name that ``rung`` grew from, or None where its source is a start of its own."""
    base = rung
    while base is not None and base.name == rung.name:
        base = ladder.base(base.label)
    return base


def _source(rung: Any) -> list[str]:
    return read_source(rung.kernel.package, rung.kernel.file).splitlines()


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
