"""A plot of a roofline: memory levels in colour along their diagonals, peaks labelled at their right ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matmill.analysis.roofline import LEVELS, PEAKS, Roofs
from matmill.bench import units
from matmill.bench.plots.style import (
    BLUE,
    GREEN,
    LABEL_SIZE,
    ON_WHITE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    name_ends,
    save,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"dram": BLUE, "l2": GREEN, "shared": ORANGE}
_MARKS = (("o", VERMILLION), ("s", PURPLE), ("^", SKY), ("D", "0.5"))
#: The axes' position in the figure; labels of peaks are to the right of them.
_BOX = (0.08, 0.1, 0.54, 0.72)
#: Peaks closer than this share one line and one label.
_CLOSE = 1.04
#: In points: the width of a balance point's number, and its height above the peak.
_FIGURE_WIDTH, _FIGURE_UP = 26, 12


@dataclass(frozen=True)
class Point:
    """A computation in the plot: its intensity relative to one level in FLOP/B, and its attainable rate in FLOP/s."""

    label: str
    intensity: float
    flops_per_s: float


def draw(roofs: Roofs, unit: str, points: Sequence[Point], path: Path, source: str = "") -> None:
    """Draw the roofs of one GPU, the balance points of ``unit``, and ``points``.

    If the data sheet's peak of ``unit`` exceeds the rate that is drawn, it is a dashed line. For the suffix of ``path``
    and ``source`` see :func:`.style.save`.
    """
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    figure = Figure(figsize=(10.5, 5.6))
    axes = figure.add_axes(_BOX)
    peaks = {name: figure.value for name, figure in roofs.peaks.items()}
    levels = {name: figure.value for name, figure in roofs.levels.items()}
    crossings = [peak / level for peak in peaks.values() for level in levels.values()]
    met = [point.intensity for point in points]
    left = 10 ** math.floor(math.log10(min(crossings + met) / 3))
    right = 10 ** math.ceil(math.log10(3 * max(crossings + met)))
    sheet = roofs.peaks[unit].sheet or 0.0
    top = max([*peaks.values(), sheet])
    bottom = min([*peaks.values(), *(point.flops_per_s for point in points), left * min(levels.values()) * 10])
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom / 4, top * 2.2))
    axes.set_xlabel("operations per byte, FLOP/B")
    axes.set_ylabel("attainable rate, FLOP/s")
    axes.yaxis.set_major_formatter(lambda value, _position: _tick(value))
    axes.xaxis.set_major_formatter(lambda value, _position: _tick(value))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.suptitle(f"Roofline of the {roofs.arch.title}", x=_BOX[0] + _BOX[2] / 2, fontsize=11)
    _diagonals(axes, levels, top)
    _ceilings(axes, peaks, max(levels.values()), right, sheet if sheet >= _CLOSE * peaks[unit] else None)
    _balance(axes, peaks[unit], levels, max(peaks[unit], sheet))
    _points(axes, points)
    save(figure, path, source)


def _diagonals(axes: Axes, levels: dict[str, float], top: float) -> None:
    """Draw one line per memory level, with its name and bandwidth along it."""
    left = axes.get_xlim()[0]
    low = axes.get_ylim()[0]
    width, height = axes.transAxes.transform((1, 1)) - axes.transAxes.transform((0, 0))
    decades = [math.log10(high / low) for low, high in (axes.get_xlim(), axes.get_ylim())]
    angle = math.degrees(math.atan2(height / decades[1], width / decades[0]))
    for name, bandwidth in levels.items():
        end = top / bandwidth
        axes.plot([left, end], [left * bandwidth, top], color=_COLOURS[name], linewidth=1.5)
        # From the line's lower end: low enough to be clear of the ceilings. The text is above the line, at a right
        # angle.
        at = max(left * 1.3, low * 1.3 / bandwidth)
        up = math.radians(angle + 90)
        axes.annotate(
            f"{LEVELS[name]} {units.quantity(bandwidth, 'B/s')}",
            (at, at * bandwidth),
            xytext=(4 * math.cos(up), 4 * math.sin(up)),
            textcoords="offset points",
            rotation=angle,
            rotation_mode="anchor",
            fontsize=LABEL_SIZE,
            va="bottom",
            color=_COLOURS[name],
        )


def _ceilings(axes: Axes, peaks: dict[str, float], widest: float, right: float, sheet: float | None) -> None:
    """Draw one line per arithmetic peak, from the fastest level's diagonal on; equal peaks share a label.

    ``sheet`` is a peak of the data sheet that was not measured.
    """
    together: list[tuple[list[float], list[str]]] = []
    for name, peak in sorted(peaks.items(), key=lambda item: item[1]):
        if not together or peak / together[-1][0][0] >= _CLOSE:
            together.append(([], []))
        together[-1][0].append(peak)
        together[-1][1].append(PEAKS[name])
    ends = []
    for alike, names in together:
        peak = alike[0]
        axes.plot([peak / widest, right], [peak, peak], color="black", linewidth=1.3)
        ends.append((right, peak, f"{_joined(names)}: {_range(peak, alike[-1])}", "black"))
    if sheet is not None:
        axes.plot([sheet / widest, right], [sheet, sheet], color="black", linewidth=1.0, linestyle="--")
        ends.append((right, sheet, f"data sheet: {units.quantity(sheet, 'FLOP/s')}", "black"))
    name_ends(axes, ends, right * (right / axes.get_xlim()[0]) ** 0.03)


def _balance(axes: Axes, peak: float, levels: dict[str, float], highest: float) -> None:
    """Draw a ring where each memory's diagonal meets ``peak``, with its intensity above ``highest``.

    Labels that are too close are moved apart.
    """
    pixels = axes.figure.dpi / 72  # pixels per point
    rings = [(peak / bandwidth, _COLOURS[name]) for name, bandwidth in levels.items()]
    wanted = [float(axes.transData.transform((at, peak))[0]) / pixels for at, _ in rings]
    heights = [float(axes.transData.transform((1, rate))[1]) / pixels for rate in (peak, highest)]
    up = heights[1] - heights[0] + _FIGURE_UP
    for (at, colour), here, moved in zip(rings, wanted, spread(wanted, _FIGURE_WIDTH, 0, math.inf), strict=True):
        axes.plot([at], [peak], marker="o", markersize=5, color=colour, markerfacecolor="white", zorder=4)
        axes.annotate(
            f"{at:.1f}",
            (at, peak),
            xytext=(moved - here, up),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=LABEL_SIZE,
            color=colour,
            bbox=ON_WHITE,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
            zorder=3,
        )


def _joined(names: Sequence[str]) -> str:
    """Merge names of peaks into one label that mentions each kind of unit once.

    >>> _joined(["tensor cores, float16", "tensor cores, bfloat16", "FMA units, float32"])
    'tensor cores, float16 and bfloat16; FMA units, float32'
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, dtype = name.partition(", ")
        kinds.setdefault(kind, []).append(dtype)
    return "; ".join(f"{kind}, {' and '.join(dtypes)}" for kind, dtypes in kinds.items())


def _range(least: float, greatest: float) -> str:
    """Format rates of arithmetic from ``least`` to ``greatest``, which may be equal after rounding.

    >>> _range(648.4e12, 649.1e12), _range(66.6e12, 66.6e12)
    ('648 to 649 TFLOP/s', '66.6 TFLOP/s')
    """
    low, high = units.quantity(least, "FLOP/s"), units.quantity(greatest, "FLOP/s")
    return low if low == high else f"{low.removesuffix(high[high.index(' ') :])} to {high}"


def _points(axes: Axes, points: Sequence[Point]) -> None:
    """Draw the computations, each with a dotted line down to the axis, and a legend under the roofs."""
    low = axes.get_ylim()[0]
    for point, (mark, colour) in zip(points, _MARKS, strict=False):
        axes.plot([point.intensity] * 2, [low, point.flops_per_s], color=colour, linestyle=":", linewidth=1)
        label = f"{point.label}: {units.digits(point.intensity)} FLOP/B, {units.quantity(point.flops_per_s, 'FLOP/s')}"
        (drawn,) = axes.plot([point.intensity], [point.flops_per_s], marker=mark, label=label, linestyle="none")
        drawn.set(color=colour, markersize=7, markerfacecolor="none", markeredgewidth=1.6, zorder=5)
    if points:
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=1, borderpad=0)


def _tick(value: float) -> str:
    """Format a power of ten for an axis.

    >>> _tick(1e15), _tick(1e10), _tick(100.0)
    ('1000T', '10G', '100')
    """
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:g}"
