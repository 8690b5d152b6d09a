"""A sweep as a picture: the rate of every rung and library over the size, each named at the end of its line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matmill.arch import measured
from matmill.bench import units
from matmill.bench.plots.style import BLUE, GREEN, GREY, LIBRARY_DASHES, ORANGE, name_ends, save
from matmill.ladders.runner.subject import TENSOR_CORE_PEAK
from matmill.ladders.runner.sweep import Curve, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osDv^<>phXP*"
#: The name of the library's own kernel in :mod:`matmill.ladders.registry`.
_PRODUCTION = "production"
#: Colours of the ladder's first, middle and last rungs.
_THIRDS = (ORANGE, GREEN, BLUE)
#: A probe's rate has its own line below this share of the peak.
_LESS = 0.95


def draw_sweep(sweep: Sweep, path: Path, source: str = "") -> None:
    """Draw the rate of every rung and library over the size, and the GPU's limits; wrong results are omitted.

    For the suffix of ``path`` and for ``source`` see :func:`.style.save`.
    """
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    first, subject = sweep.first, sweep.first.subject
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.add_subplot()
    curves = sweep.curves()
    styles = _styles(curves)
    ends = [_line(axes, sweep, curve, **styles[curve.name]) for curve in curves]
    for name, rate in _limits(sweep):
        axes.plot(sweep.sizes, [rate] * len(sweep.sizes), color="black", linewidth=0.8)
        ends.append((sweep.sizes[-1], rate, f"{name} {units.digits(rate)}", "black"))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    axes.set_xticks(sweep.sizes, [str(size) for size in sweep.sizes])
    axes.set_xticks([], minor=True)
    # The names are to the right of the last size.
    axes.set_xlim(sweep.sizes[0] / 1.1, sweep.sizes[-1] * 2 ** (0.36 * len(sweep.sizes)))
    axes.set_xlabel("m = n = k")
    axes.set_ylabel(subject.unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines["bottom"].set_bounds(sweep.sizes[0] / 1.1, sweep.sizes[-1])
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    figure.suptitle(f"{first.ladder} ladder, {first.problem.dtype.name}, on {first.arch.title}", fontsize=11)
    figure.draw_without_rendering()  # fixes the axes' size, on which the distances of names depend
    name_ends(axes, [end for end in ends if end is not None], sweep.sizes[-1] * 2**0.3)
    save(figure, path, source)


def _limits(sweep: Sweep) -> Iterator[tuple[str, float]]:
    """Yield names and TFLOP/s: the data sheet's peak, and mma.sync's rate in a probe if that is less."""
    first = sweep.first
    peak = first.subject.peak(first.problem, first.arch)
    if peak is None:
        return
    yield first.subject.limit_name, peak / 1e12
    probe = measured(first.arch) if first.subject.limit_name == TENSOR_CORE_PEAK else None
    reached = probe.matrix_flops.get(first.problem.dtype.name) if probe is not None else None
    if reached is not None and reached < _LESS * peak:
        yield "mma.sync, probed", reached / 1e12


def _styles(curves: list[Curve]) -> dict[str, dict[str, Any]]:
    """Return the look of every curve: rungs in a colour for each third of the ladder, other libraries dashed in grey.

    The library's own kernel is black. Marks and the names at the lines' ends distinguish the rungs of a third.
    """
    styles: dict[str, dict[str, Any]] = {}
    rungs = [curve.name for curve in curves if curve.ours and curve.name != _PRODUCTION]
    for index, name in enumerate(rungs):
        styles[name] = {
            "color": _THIRDS[len(_THIRDS) * index // len(rungs)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "linewidth": 1.2,
        }
    styles[_PRODUCTION] = {"color": "black", "marker": "*", "linewidth": 1.8}
    for index, curve in enumerate(curve for curve in curves if not curve.ours):
        styles[curve.name] = {"color": GREY, "linestyle": LIBRARY_DASHES[index % len(LIBRARY_DASHES)], "linewidth": 1.8}
    return styles


def _line(axes: Axes, sweep: Sweep, curve: Curve, **style: Any) -> tuple[float, float, str, str] | None:
    """Draw the rates of right results, joined if they are neighbours; return the line's end, its name and colour."""
    rate = sweep.first.subject.rate
    rates = [getattr(row, rate) if row is not None and row.ok else None for row in curve.rows]
    heights = [math.nan if value is None else value for value in rates]
    axes.plot(sweep.sizes, heights, markersize=4.5, **style)
    known = [(size, value) for size, value in zip(sweep.sizes, rates, strict=True) if value is not None]
    return (*known[-1], curve.name, style["color"]) if known else None
