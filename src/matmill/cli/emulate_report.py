"""An emulated launch as text that fits a terminal: verdict, hazards, counts, memory traffic by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from matmill.cli.console import table

if TYPE_CHECKING:
    from matmill.emulator.report.counters import LineCounts
    from matmill.testing.expected import Expectation
    from matmill.testing.report import LaunchReport

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold", "verdict": "bold"}
#: Rows of the table by line: the access, and the names of its requests, sectors or passes, and bytes or fewest passes.
_TRAFFIC = (
    ("global load", "global_load_requests", "global_load_sectors", "global_load_bytes"),
    ("global store", "global_store_requests", "global_store_sectors", "global_store_bytes"),
    ("cp.async", "cp_async_global_requests", "cp_async_sectors", "cp_async_bytes"),
    ("bulk load", "bulk_loads", "bulk_load_sectors", "bulk_load_bytes"),
    ("bulk store", "bulk_stores", "bulk_store_sectors", "bulk_store_bytes"),
    ("shared load", "shared_load_requests", "shared_load_wavefronts", "shared_load_wavefronts_ideal"),
    ("shared store", "shared_store_requests", "shared_store_wavefronts", "shared_store_wavefronts_ideal"),
    ("atomics", "atomics", "", ""),
)
#: The fewest columns of a source line in the table.
_LEAST_CODE = 16
#: Columns between those of a table.
_BETWEEN = 2


def shown(
    report: LaunchReport, outputs: Sequence[dict[str, Any]], expectations: Sequence[Expectation], width: int
) -> Iterator[RenderableType]:
    """Yield the report as text of ``width`` columns, after the kernel's own output."""
    if report.printed:
        yield Text(report.printed.removesuffix("\n"))
    for line in report.text(width):
        yield Text(line, style=_STYLES.get(line.partition(":")[0], ""))
    if not report.faulted:
        yield from _shown_counts(report, width)
    for output in outputs:
        shape = "x".join(map(str, output["shape"]))
        yield Text(f"argument {output['argument']} ({output['dtype']} {shape}) is in {output['file']}")
    for expectation in expectations:
        yield Text(str(expectation), style="" if expectation.ok else "bold red")


def _shown_counts(report: LaunchReport, width: int) -> Iterator[RenderableType]:
    """Yield all counts that are not 0, then the memory traffic of each line."""
    from matmill.testing.report import clipped, counted  # noqa: PLC0415 — other commands should not pay for it

    counts = counted(report.counters.as_dict())
    yield Text()
    yield table("Counts", [("what", "left"), ("count", "right")], [[n, f"{count:,}"] for n, count in counts.items()])
    lines = [(location, row) for location, line in _by_number(report) for row in _rows(line)]
    if not lines:
        return
    files = {location.rpartition(":" if ":" in location else " ")[0] for location, _ in lines}
    heading = files.pop() if len(files) == 1 else ""
    rows = [[location.removeprefix(heading).lstrip(": "), *row] for location, row in lines]
    headings = [heading or "line", "access", "requests", "moved", "fewest", ""]
    used = sum(max(map(len, column)) + _BETWEEN for column in zip(headings, *rows, strict=True))
    room = width - used
    if room >= _LEAST_CODE:
        code = [clipped(report.source.get(location, ""), room) for location, _ in lines]
        before = ["", *(location for location, _ in lines)]
        for row, text, (location, _), previous in zip(rows, code, lines, before, strict=False):
            row.append(escape(text) if location != previous else "")
        headings.append("")
    yield Text()
    sides = ["left", "left", "right", "right", "right", "right", "left"]
    yield table("Memory traffic by line", list(zip(headings, sides, strict=False)), rows)
    yield Text("moved: 32-byte sectors (global) or passes (shared); fewest: for these bytes")


def _rows(line: LineCounts) -> Iterator[list[str]]:
    """Yield the cells of each kind of access of a line: requests, what they move, the fewest, and their ratio."""
    for access, *names in _TRAFFIC:
        requests, moved, least = (getattr(line, name) if name else 0 for name in names)
        if not requests and not moved:
            continue
        if names[-1].endswith("_bytes"):
            least = max(min(requests, moved), -(-least // 32))
        factor = f"{moved / least:.3g}x" if least and moved >= 1.05 * least else ""
        yield [access, f"{requests:,}", *(f"{count:,}" if moved else "" for count in (moved, least)), factor]


def _by_number(report: LaunchReport) -> list[tuple[str, LineCounts]]:
    """Return the lines in the order of their files and numbers: "k.cu:9" before "k.cu:10"."""

    def key(item: tuple[str, LineCounts]) -> tuple[str, int]:
        number = re.search(r"\d+$", item[0])
        return (item[0][: number.start()], int(number[0])) if number else (item[0], 0)

    return sorted(report.by_line.items(), key=key)
