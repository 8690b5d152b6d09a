"""A ladder's result as a picture: a bar per rung with its figure, and libraries in grey below the rungs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from matmill.bench import units
from matmill.bench.plots.style import BLUE, COLOURS, GREY, ON_WHITE, ORANGE, SKY, save
from matmill.ladders.runner.results import Outcome, Row
from matmill.ladders.runner.traffic import read_over_least, used_over_moved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_INCHES = 0.34
#: Rows between the rungs and the libraries.
_APART = 0.4
#: The colour of rungs with wrong results.
_WRONG = "white"
#: The loads of a rung without counters.
_NOTHING = dict.fromkeys(("global_load_bytes", "cp_async_bytes", "global_load_sectors", "cp_async_sectors"), 0)


def draw(outcome: Outcome, path: Path, source: str = "") -> None:
    """Draw ``outcome`` into ``path``; for the suffix and ``source`` see :func:`.style.save`."""
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    rows = [row for row in outcome.rows if row.ok is not None]
    height = 1.6 + _ROW_INCHES * (len(rows) + (len(outcome.baselines) if outcome.on == "gpu" else 0) + 1)
    if any(row.phases for row in rows):
        figure = Figure(figsize=(8, height), layout="constrained")
        _phases(figure.add_subplot(), rows)
    elif outcome.on == "gpu":
        figure = Figure(figsize=(8, height), layout="constrained")
        _rates(figure.add_subplot(), rows, outcome)
    elif "read over least" in outcome.subject.counted:
        figure = Figure(figsize=(8, height), layout="constrained")
        _reads(figure.add_subplot(), rows)
    else:
        figure = Figure(figsize=(10, height), layout="constrained")
        _traffic(figure, rows)
    problem = f"{outcome.subject.format_sizes(outcome.problem)} {outcome.problem.dtype.name}"
    where = f"on {outcome.arch.title}" if outcome.on == "gpu" else f"emulated for {outcome.arch.title}"
    figure.suptitle(f"{outcome.ladder} ladder, {problem}, {where}", fontsize=11)
    save(figure, path, source)


def _rates(axes: Axes, rows: list[Row], outcome: Outcome) -> None:
    """Draw the rate of every rung and, in grey, every library, with lines at the GPU's limit and the best library."""
    subject = outcome.subject
    slots = _names(axes, rows, [base.name for base in outcome.baselines])
    theirs = [getattr(base, subject.rate) for base in outcome.baselines]
    rates = [*(getattr(row, subject.rate) or 0.0 for row in rows), *theirs]
    colours = [*_colours(rows), *(GREY for _ in theirs)]
    bars = axes.barh(slots, rates, color=colours, edgecolor=[*(BLUE for _ in rows), *(GREY for _ in theirs)])
    axes.bar_label(bars, [units.digits(rate) for rate in rates], padding=4, fontsize=8, bbox=ON_WHITE, zorder=3)
    if theirs:
        axes.axvline(max(theirs), color=GREY, linestyle="--", linewidth=1.2, zorder=0)
    peak = (subject.peak(outcome.problem, outcome.arch) or 0.0) / 1e12
    if peak:
        _named_line(axes, peak, f"{subject.limit_name} {units.digits(peak)}")
    axes.set_xlim(0, 1.1 * max([peak, *rates]))
    axes.set_xlabel(subject.unit)


def _phases(axes: Axes, rows: list[Row]) -> None:
    """Draw the wall time of every rung, split into its phases; without times, the bytes that each phase moves."""
    timed = any(row.seconds for row in rows)
    measure, scale = ("seconds", 1e3) if timed else ("bytes", 1.0)
    slots = _names(axes, rows)
    left = [0.0] * len(rows)
    phases = [row.phases or {} for row in rows]
    for name, colour in zip(dict.fromkeys(chain(*phases)), (BLUE, SKY, ORANGE, *COLOURS[2:]), strict=False):
        taken = [(of_row.get(name, {}).get(measure) or 0.0) * scale for of_row in phases]
        if any(taken):
            axes.barh(slots, taken, left=left, label=name, color=colour)
        left = [before + more for before, more in zip(left, taken, strict=True)]
    totals = [units.seconds(total / scale) if timed else units.quantity(total, "B") for total in left]
    for slot, total, label in zip(slots, left, totals, strict=True):
        axes.annotate(label, (total, slot), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, 1.12 * max([*left, 1e-9]))
    axes.set_xlabel("wall time, ms" if timed else "bytes moved")
    if not timed:
        axes.xaxis.set_major_formatter(lambda value, _position: units.count(value))
    _legend(axes)


def _reads(axes: Axes, rows: list[Row]) -> None:
    """Draw the bytes that every rung reads relative to the least that must move, with a line at 1."""
    slots = _names(axes, rows)
    ratios = [read_over_least(row.counters, row.bytes) if row.counters else 0.0 for row in rows]
    bars = axes.barh(slots, ratios, color=_colours(rows), edgecolor=BLUE)
    axes.bar_label(bars, [units.digits(ratio) for ratio in ratios], padding=4, fontsize=8, bbox=ON_WHITE, zorder=3)
    _named_line(axes, 1.0, "the least")
    axes.set_xlim(0, 1.15 * max([1.0, *ratios]))
    axes.set_xlabel("global bytes read over the least that must move")


def _traffic(figure: Figure, rows: list[Row]) -> None:
    """Draw for every rung the ideal and actual shared-memory wavefronts, and bytes used over bytes moved by loads."""
    shared, loads = figure.subplots(1, 2, sharey=True)
    slots = _names(shared, rows)
    thick = 0.38
    ideal = [_both(row, "_ideal") for row in rows]
    actual = [_both(row, "") for row in rows]
    shared.barh([slot - thick / 2 for slot in slots], ideal, thick, label="ideal", color=SKY)
    bars = shared.barh([slot + thick / 2 for slot in slots], actual, thick, label="actual", color=BLUE)
    shared.bar_label(bars, [_excess(i, a) for i, a in zip(ideal, actual, strict=True)], padding=3, fontsize=8)
    shared.set_xlabel("shared-memory wavefronts, loads and stores")
    shared.set_xlim(0, 1.18 * max([1.0, *actual]))
    shared.xaxis.set_major_formatter(lambda value, _position: units.count(value))
    _legend(shared)
    used = [used_over_moved(row.counters or _NOTHING) for row in rows]
    bars = loads.barh(slots, [value or 0.0 for value in used], 0.7, color=ORANGE)
    labels = ["none" if value is None else units.percent(value) for value in used]
    loads.bar_label(bars, labels, padding=3, fontsize=8, bbox=ON_WHITE, zorder=3)
    _named_line(loads, 1.0, "each byte moved is used once")
    loads.set_xlabel("global loads: bytes used over bytes moved in 32-byte sectors")
    loads.set_xlim(0, 1.25 * max([1.0, *(value or 0.0 for value in used)]))
    loads.xaxis.set_major_formatter(lambda value, _position: f"{value:.0%}")
    loads.spines[["top", "right"]].set_visible(False)


def _names(axes: Axes, rows: list[Row], libraries: Sequence[str] = ()) -> list[float]:
    """Put the names of rungs and, below them, libraries on the vertical axis; return the height of each."""
    names = [*(row.rung if row.ok else f"{row.rung}: WRONG" for row in rows), *libraries]
    slots = [float(index) + (_APART if index >= len(rows) else 0.0) for index in range(len(names))]
    axes.set_yticks(slots, names, fontsize=9)
    axes.set_ylim(slots[-1] + 0.6, -0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return slots


def _colours(rows: Sequence[Row]) -> list[str]:
    """Return the fill of every rung's bar."""
    return [BLUE if row.ok else _WRONG for row in rows]


def _named_line(axes: Axes, at: float, name: str) -> None:
    """Draw a line that bounds the bars, with its name at its upper end."""
    axes.axvline(at, color="black", linewidth=1.0)
    axes.annotate(
        name, (at, 1), (0, 2), xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="center", fontsize=8
    )


def _legend(axes: Axes) -> None:
    """Draw the legend above the plot, outside the bars."""
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0))


def _both(row: Row, suffix: str) -> float:
    c = row.counters or {}
    return float(c.get(f"shared_load_wavefronts{suffix}", 0) + c.get(f"shared_store_wavefronts{suffix}", 0))


def _excess(ideal: float, actual: float) -> str:
    return f"{units.digits(actual / ideal)}x" if ideal else "none"
