"""Output of commands: tables on stdout, progress on stderr if that is a terminal, plain text elsewhere."""

from __future__ import annotations

import json
import sys
import time
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

from matmill.bench import units
from matmill.bench.progress import Progress as Report
from matmill.settings import columns, plain_text

#: The columns of files and pipes, which have no width of their own, where COLUMNS does not say.
PLAIN_WIDTH = 80


def output(file: TextIO | None = None, width: int | None = None) -> Console:
    """Return the console of stdout or ``file``, with colour on a terminal unless NO_COLOR is set."""
    to = file or sys.stdout
    if width is None and not to.isatty():
        width = columns() or PLAIN_WIDTH
    return Console(file=to, no_color=plain_text() or None, highlight=False, width=width)


def show(parts: Iterable[RenderableType], file: TextIO | None = None) -> None:
    """Print tables and text on stdout or to ``file``.

    A table wider than the terminal is printed whole, and the terminal wraps its lines: no figure is truncated.
    """
    console = output(file)
    for part in parts:
        if isinstance(part, Table):
            # Separately, because rich would wrap a title to the width of its table.
            console.print(Text(str(part.title or ""), style="bold"), soft_wrap=True)
            part.title = None
            needed = Measurement.get(console, console.options.update(max_width=1000), part).maximum
            output(file, max(console.width, needed)).print(part)
        else:
            console.print(part, soft_wrap=True)


def table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of ``columns`` as (heading, ``left`` or ``right``), each as wide as its widest cell."""
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
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def answer(
    document: object,
    parts: Iterable[RenderableType],
    *,
    as_json: bool,
    plot: Path | None,
    draw: Callable[[Path], object],
) -> None:
    """Print a command's result as one JSON document or as ``parts``, and draw it to ``plot``, if there is one."""
    if as_json:
        show_json(document)
    else:
        show(parts)
    if plot is not None:
        draw(plot)
        if not as_json:
            show([Text(f"Plot: {plot}")])


#: Seconds between lines that report progress to a file or a pipe; a shorter run prints none.
_EVERY = 10.0
#: From so many seconds on, times are in minutes.
_MINUTES = 100


def say_how_long(seconds: float) -> None:
    """Print roughly how long an emulation takes on stderr, if it is more than ten seconds."""
    if seconds > _EVERY:
        duration = f"{seconds:.0f} s" if seconds < _MINUTES else f"{seconds / 60:.0f} min"
        sys.stderr.write(f"matmill: the emulator takes roughly {duration} for this on one core\n")
        sys.stderr.flush()


class _Lines:
    """Progress lines on stderr, at most one in :data:`_EVERY` seconds."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def say(self, words: str) -> None:
        """Write a line, unless the last one, or the start, was too recent."""
        now = time.monotonic()
        if now - self._last >= _EVERY:
            sys.stderr.write(f"matmill: {now - self._start:.0f} s: {words}\n")
            sys.stderr.flush()
            self._last = now


@contextmanager
def progress() -> Iterator[Report]:
    """Report the progress of a run on stderr: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        lines = _Lines()

        def say(label: str, done: int, total: int) -> None:
            lines.say(f"{label}, {done} of {total} done")

        yield say
        return
    console = Console(file=sys.stderr, no_color=plain_text() or None)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(separator="/"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield report


@contextmanager
def transferring() -> Iterator[Callable[[int, int], None]]:
    """Report bytes done and all bytes on stderr: a bar on a terminal, else a line now and then.

    The bar appears with the first report, so that products that are not streamed have none.
    """
    if not sys.stderr.isatty():
        lines = _Lines()

        def say(done: int, total: int) -> None:
            lines.say(f"{units.quantity(done, 'B')} of {units.quantity(total, 'B')} read")

        yield say
        return
    console = Console(file=sys.stderr, no_color=plain_text() or None)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, visible=False)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield report
