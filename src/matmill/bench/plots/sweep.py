"""A sweep as a picture: the rate of every rung and library over the size, each named at its line's end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matmill.bench import units
from matmill.bench.ladder.sweep import Curve, Sweep
from matmill.bench.plots.style import COLOURS, GREY, LIBRARY_DASHES, name_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osDv^<>phXP*"
#: What :mod:`matmill.bench.ladder.ladders` names what the library runs.
_PRODUCTION = "production"


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """Draws the rate of every rung and library over the size, and the GPU's peak.

    The suffix of ``path`` (.png, .svg) decides the format. Wrong results are left out.
    """
    # Imported here: matplotlib is optional, and slow to load. Figure, not pyplot: no window system is touched.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    first, subject = sweep.first, sweep.first.subject
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.add_subplot()
    curves = sweep.curves()
    styles = _styles(curves)
    ends = [_line(axes, sweep, curve, **styles[curve.name]) for curve in curves]
    peak = subject.peak(first.problem, first.arch)
    if peak is not None:
        axes.plot(sweep.sizes, [peak / 1e12] * len(sweep.sizes), color="black", linewidth=0.8)
        ends.append((sweep.sizes[-1], peak / 1e12, f"{subject.limit_name} {units.digits(peak / 1e12)}", "black"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sweep.sizes, [str(size) for size in sweep.sizes])
    axes.set_xticks([], minor=True)
    # The names stand to the right of the last size.
    axes.set_xlim(sweep.sizes[0] / 1.1, sweep.sizes[-1] * 2 ** (0.36 * len(sweep.sizes)))
    axes.set_xlabel("m = n = k")
    axes.set_ylabel(subject.unit)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines["bottom"].set_bounds(sweep.sizes[0] / 1.1, sweep.sizes[-1])
    figure.suptitle(f"{first.ladder} ladder, {first.problem.dtype.name}, on {first.arch.title}", fontsize=11)
    figure.draw_without_rendering()  # fixes the axes' size, which the distances of names depend on
    name_ends(axes, [end for end in ends if end is not None], sweep.sizes[-1] * 2**0.3)
    figure.savefig(path, dpi=160)


def _styles(curves: list[Curve]) -> dict[str, dict[str, Any]]:
    """The look of every curve: rungs in colour, what the library runs in black, other libraries dashed in grey."""
    found: dict[str, dict[str, Any]] = {}
    rungs = [curve.name for curve in curves if curve.ours and curve.name != _PRODUCTION]
    for index, name in enumerate(rungs):
        found[name] = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "linewidth": 1.3,
        }
    found[_PRODUCTION] = {"color": "black", "marker": "*", "linewidth": 1.6}
    for index, curve in enumerate(curve for curve in curves if not curve.ours):
        found[curve.name] = {"color": GREY, "linestyle": LIBRARY_DASHES[index % len(LIBRARY_DASHES)], "linewidth": 1.8}
    return found


def _line(axes: Axes, sweep: Sweep, curve: Curve, **style: Any) -> tuple[float, float, str, str] | None:
    """Draws the rates of right results, joined where they are neighbours; gives the line's end, its name and colour."""
    rate = sweep.first.subject.rate
    found = [getattr(row, rate) if row is not None and row.ok else None for row in curve.rows]
    heights = [math.nan if value is None else value for value in found]
    axes.plot(sweep.sizes, heights, markersize=4.5, **style)
    known = [(size, value) for size, value in zip(sweep.sizes, found, strict=True) if value is not None]
    return (*known[-1], curve.name, style["color"]) if known else None
