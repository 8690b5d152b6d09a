"""How commands speak: tables on stdout, progress on stderr where somebody is watching, plain text elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from matmill.bench.progress import Progress as Report
from matmill.bench.progress import silent
from matmill.settings import plain_text

#: Prose is not laid out wider than this in files and pipes, which have no width of their own.
PLAIN_WIDTH = 100


def output(file: TextIO | None = None, width: int | None = None) -> Console:
    """The console of stdout or ``file``: colour on a terminal unless NO_COLOR asks for none, plain text elsewhere."""
    to = file or sys.stdout
    if width is None and not to.isatty():
        width = PLAIN_WIDTH
    return Console(file=to, no_color=plain_text() or None, highlight=False, width=width)


def show(parts: Iterable[RenderableType], file: TextIO | None = None) -> None:
    """Prints tables and text on stdout, or into ``file``.

    A table wider than the terminal is still printed whole, and the terminal wraps its lines: no figure is cut short.
    """
    console = output(file)
    for part in parts:
        if isinstance(part, Table):
            # By itself: rich would wrap a title to the width of its table.
            console.print(Text(str(part.title or ""), style="bold"), soft_wrap=True)
            part.title = None
            needed = Measurement.get(console, console.options.update(max_width=1000), part).maximum
            output(file, max(console.width, needed)).print(part)
        else:
            console.print(part, soft_wrap=True)


def table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> Table:
    """A table of ``columns`` as (heading, ``left`` or ``right``), each as wide as its widest cell."""
    built = Table(
        title=title,
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading, side in columns:
        built.add_column(heading, justify="left" if side == "left" else "right", no_wrap=True, overflow="fold")
    for row in rows:
        built.add_row(*row)
    return built


def show_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def answer(
    document: object,
    parts: Iterable[RenderableType],
    *,
    as_json: bool,
    plot: Path | None,
    draw: Callable[[Path], object],
) -> None:
    """Says what a command found: one JSON document, or ``parts``; then draws it into ``plot``, where one is named."""
    if as_json:
        show_json(document)
    else:
        show(parts)
    if plot is not None:
        draw(plot)
        if not as_json:
            show([Text(f"Plot: {plot}")])


@contextmanager
def progress() -> Iterator[Report]:
    """A progress report for a run: a bar on stderr where that is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield silent
        return
    console = Console(file=sys.stderr, no_color=plain_text() or None)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(separator="/"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield report


@contextmanager
def transferring() -> Iterator[Callable[[int, int], None] | None]:
    """A report of bytes done and bytes in all: a bar on stderr where that is a terminal, None elsewhere.

    The bar appears with the first report: a product that is not streamed has none.
    """
    if not sys.stderr.isatty():
        yield None
        return
    console = Console(file=sys.stderr, no_color=plain_text() or None)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, visible=False)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield report
