"""Rates over size as a picture that survives a black-and-white printer: greys, markers and dashes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matmill.bench import units
from matmill.bench.ladder.sweep import Curve, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osDv^<>phXP*"
_DASHES = ("--", ":", "-.")
_LIGHTEST = 0.7


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
    ours = [curve for curve in curves if curve.ours]
    for place, curve in enumerate(ours):
        # Later rungs are darker.
        grey = _LIGHTEST * (1 - (place + 1) / len(ours))
        _line(axes, sweep, curve, color=str(grey), marker=_MARKERS[place % len(_MARKERS)], linewidth=1.2)
    for place, curve in enumerate(curve for curve in curves if not curve.ours):
        _line(axes, sweep, curve, color="black", linestyle=_DASHES[place % len(_DASHES)], linewidth=2.0)
    peak = subject.peak(first.problem, first.arch)
    if peak is not None:
        label = f"{subject.limit_name} {units.digits(peak / 1e12)}"
        axes.axhline(peak / 1e12, color="black", linewidth=0.8, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sweep.sizes, [str(size) for size in sweep.sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("m = n = k")
    axes.set_ylabel(subject.unit)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{first.ladder} ladder, {first.problem.dtype.name}, on {first.arch.title}", fontsize=11)
    figure.savefig(path, dpi=160)


def _line(axes: Axes, sweep: Sweep, curve: Curve, **style: Any) -> None:
    """The rates of right results, joined where they are neighbours."""
    rate = sweep.first.subject.rate
    found = [getattr(row, rate) if row is not None and row.ok else None for row in curve.rows]
    heights = [math.nan if value is None else value for value in found]
    axes.plot(sweep.sizes, heights, label=curve.name, markersize=4.5, **style)
