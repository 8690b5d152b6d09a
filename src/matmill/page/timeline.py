"""The timeline of a thread block as a picture: a row for each role of its warps, and what waits for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from matmill.emulator import Event
from matmill.errors import ArgumentError
from matmill.page.document import SCHEME
from matmill.page.placement import Bar, Placement

#: Steps that a picture shows.
_MOST = 48
#: Pixels: where the first step and the first row begin, of a step, from row to row, and of a bar.
_LEFT, _TOP, _STEP, _ROW, _HIGH = 108, 86, 44, 64, 34
_STAGES = ("#2f86d0", "#d98200", "#1a9e77", "#c2609a", "#8a6fd1", "#d5502e", "#7d8a1a", "#2aa5b8")
_STYLE = (
    "".join(f".s{n} {{ --stage: {colour}; }} " for n, colour in enumerate(_STAGES))
    + """
.timeline rect { stroke: var(--stage, var(--quiet));
  fill: color-mix(in srgb, var(--stage, var(--edge)) 32%, var(--paper));
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.timeline path { stroke: var(--stage, var(--ink)); fill: none; stroke-width: 1.5; }
.timeline .free { stroke-dasharray: 2 4; } .timeline .turn { stroke-width: 3; }
.timeline .wait { stroke: var(--quiet); } .timeline .idle { stroke: var(--error); stroke-width: 2; }
.timeline line { stroke: var(--edge); } .timeline text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.timeline .quiet { fill: var(--quiet); } .timeline .title { font-size: 17px; font-weight: 600; }
"""
)


def timeline(kernel: str, events: Sequence[Event]) -> str:
    """Return the timeline of a block as an SVG file.

    Raises :class:`~matmill.errors.ArgumentError` for events without a wait for an mbarrier.
    """
    if not _has_waits(events):
        raise ArgumentError(
            argument="timeline", got=f"kernel {kernel}, in which no thread waits for an mbarrier",
            wanted="a kernel whose warps pass data on through mbarriers, for instance a pipeline of TMA loads",
            fix="Omit --timeline; --html shows the counts of any kernel.",
        )  # fmt: skip
    placement = Placement(events)
    title, note = _words(kernel, placement)
    words = f'<text class="title" x="8" y="26">{title}</text><text class="quiet" x="8" y="48">{note}</text>\n'
    style = f"<style>{SCHEME}{_STYLE}svg {{ background: var(--paper); }}</style>"
    return _svg(placement, title, style + words, 0, 10 * len(title))


def timeline_figure(kernel: str, events: Sequence[Event]) -> str:
    """Return the timeline as a part of a page, which scrolls where it is narrow; nothing without mbarriers."""
    if not _has_waits(events):
        return ""
    placement = Placement(events)
    title, note = _words(kernel, placement)
    return (
        f'<p><strong>{title}</strong><br><span class="quiet">{note}</span></p><div class="scroll" tabindex="0" '
        f'role="region" aria-label="timeline">{_svg(placement, title, f"<style>{_STYLE}</style>", _TOP - 16, 0)}</div>'
    )


def _has_waits(events: Sequence[Event]) -> bool:
    return any(event.kind == "wait" for event in events)


def _words(kernel: str, placement: Placement) -> tuple[str, str]:
    """Return the conclusion and the explanation of a picture, as HTML."""
    note = (
        "Order, not time: everything is as far left as the barriers allow, in the emulator's run of one block. "
        "Numbers and colours are stages."
    )
    if any(bar.start >= _MOST for bar in placement.bars):
        note += f" These are the first {_MOST} steps."
    return escape(f"{kernel.rpartition('.')[2]}: {placement.conclusion()}"), escape(note)


def _svg(placement: Placement, title: str, start: str, top: int, least: int) -> str:
    """Draw all below the line ``top``, ``least`` pixels wide, after ``start``; ``title`` is for screen readers."""
    shown = [bar for bar in placement.bars if bar.start < _MOST]
    end = int(_x(max((bar.end for bar in shown), default=0))) + 24
    wide, high = max(end, least, 880), _y(len(placement.rows) + 1) + 30
    parts = [*_arrows(placement, shown), *_rows(placement, shown, end), *_legend(placement, high - 14)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {wide} {high - top}" width="{wide}" '
        f'height="{high - top}" class="timeline" style="max-width:none" role="img" aria-label="{title}">{start}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _x(at: float) -> float:
    return _LEFT + at * _STEP


def _y(row: int) -> int:
    return _TOP + row * _ROW


def _colour(placement: Placement, bar: Bar) -> str:
    """Return the class of a bar's stage."""
    return f" s{placement.stages.index(bar.use[0]) % len(_STAGES)}" if bar.use is not None else ""


def _rows(placement: Placement, shown: Sequence[Bar], end: int) -> Iterator[str]:
    """Yield a row for each role with its bars, and one with the products of all."""
    for n, row in enumerate(placement.rows):
        first, last = row.warps[0], row.warps[-1]
        warps = f"warps {first} to {last}" if last > first else f"warp {first}"
        bars = "".join(_drawn(placement, bar, _y(n)) for bar in shown if bar.row == n)
        yield f'<g class="role">{_heading(row.name, warps, _y(n), end)}{bars}</g>'
    y = _y(len(placement.rows))
    units = [_drawn(placement, bar, y, label=False) for bar in shown if bar.kind == "product"]
    units += [_span("idle", *gap, y) for gap in placement.gaps() if gap[0] < _MOST]
    if units:
        heading = _heading(placement.units.removeprefix("the "), "of all roles", y, end)
        yield f'<g class="units">{heading}{"".join(units)}</g>'


def _heading(name: str, what: str, y: int, end: int) -> str:
    line = f'<line x1="{_LEFT}" x2="{end - 8}" y1="{y + _HIGH + 0.5}" y2="{y + _HIGH + 0.5}"/>'
    return f'{line}<text x="8" y="{y + 15}">{name}</text><text class="quiet" x="8" y="{y + 30}">{what}</text>'


def _drawn(placement: Placement, bar: Bar, y: int, *, label: bool = True) -> str:
    """Draw a bar; loads of a role that multiplies too are below it."""
    if bar.kind == "wait":
        return _span("wait", bar.start, bar.end, y)
    x, wide, high = _x(bar.start), (bar.end - bar.start) * _STEP, _HIGH
    if bar.kind == "load" and placement.rows[bar.row].multiplies:
        y, high = y + _HIGH + 4, _HIGH // 2
    words = str(placement.stages.index(bar.use[0])) if bar.use is not None else bar.kind if bar.kind == "store" else ""
    text = f'<text x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:g}" text-anchor="middle">{words}</text>' if label else ""
    rect = f'<rect x="{x + 0.5:.1f}" y="{y}" width="{wide - 1:.1f}" height="{high}" rx="3"/>'
    return f'<g class="{bar.kind}{_colour(placement, bar)}">{rect}{text}</g>'


def _span(kind: str, start: float, end: float, y: int) -> str:
    """Draw a line with both ends marked, in the middle of a row, for something that does not happen."""
    wide = (end - start) * _STEP - 2
    return f'<path class="{kind}" d="M{_x(start) + 1:.1f} {y + _HIGH // 2 - 5}v10m0-5h{wide:.1f}m0-5v10"/>'


def _arrows(placement: Placement, shown: Sequence[Bar]) -> Iterator[str]:
    """Yield the ways of data: from each load to its products, from these to the next load of the stage, and turns."""
    loads = [(bar, bar.use) for bar in shown if bar.kind == "load" and bar.use is not None]
    products = [bar for bar in shown if bar.kind == "product"]
    for load, (barrier, phase) in loads:
        colour = _colour(placement, load)
        for bar in (bar for bar in products if bar.row != load.row):
            if bar.use == (barrier, phase):
                yield _way(f"full{colour}", (load.end - 0.125, load.row), (bar.start + 0.15, bar.row))
            elif bar.use == (barrier, phase - 1):
                yield _way(f"free{colour}", (bar.end - 0.15, bar.row), (load.start + 0.125, load.row))
    for giver, taker, at in sorted(placement.turns):
        if at < _MOST:
            yield _way("turn", (at, giver), (at, taker))


def _way(kind: str, start: tuple[float, int], end: tuple[float, int]) -> str:
    """Draw a curve from one row to another."""
    down = end[1] > start[1]
    x0, x1 = _x(start[0]), _x(end[0])
    y0, y1 = _y(start[1]) + (_HIGH if down else 0), _y(end[1]) + (0 if down else _HIGH)
    half = (y0 + y1) / 2
    return f'<path class="{kind}" d="M{x0:.1f} {y0}C{x0:.1f} {half:g} {x1:.1f} {half:g} {x1:.1f} {y1}"/>'


def _legend(placement: Placement, y: int) -> Iterator[str]:
    """Yield the meaning of the lines."""
    lines = [("full s0", "data has come (full barrier)"), ("free s0", "stage is free (empty barrier)")]
    lines += [("wait", "waits at a barrier"), *([("turn", "its turn (named barrier)")] if placement.turns else [])]
    for n, (kind, words) in enumerate(lines):
        x = 8 + 225 * n
        yield f'<path class="{kind}" d="M{x} {y - 4}h28"/><text x="{x + 36}" y="{y}">{words}</text>'
