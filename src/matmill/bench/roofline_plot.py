"""A roofline as a picture: every roof labelled where it lies, readable in black and white."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from matmill.analysis.roofline import LEVELS, PEAKS, Roofs
from matmill.bench import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = {"dram": "-", "l2": "--", "shared": "-."}
_MARKS = ("o", "s", "^", "D")
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
#: Share of the width in which diagonals end.
_CLEAR = 0.66
#: Peaks closer than this share one line and one label.
_CLOSE = 1.04


@dataclass(frozen=True)
class Point:
    """A computation in the picture: its intensity towards one level in FLOP/B, and the rate it may reach in FLOP/s."""

    label: str
    intensity: float
    flops_per_s: float


def draw(made: Roofs, unit: str, points: Sequence[Point], path: Path) -> None:
    """Draws the roofs of one GPU, the balance points of ``unit``, and ``points``.

    The suffix of ``path`` (.png, .svg) decides the format.
    """
    # Imported here: matplotlib is optional, and slow to load. Figure, not pyplot: no window system is touched.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    figure = Figure(figsize=(8.5, 5.6), layout="constrained")
    axes = figure.add_subplot()
    peaks = {name: figure.value for name, figure in made.peaks.items()}
    levels = {name: figure.value for name, figure in made.levels.items()}
    crossings = [peak / level for peak in peaks.values() for level in levels.values()]
    met = [point.intensity for point in points]
    left = 10 ** math.floor(math.log10(min(crossings + met) / 3))
    # The ceilings' names stand at their right ends: no balance point reaches there.
    right = max([left * (max(crossings) / left) ** (1 / _CLEAR), *(3 * each for each in met)])
    right = 10 ** math.ceil(math.log10(right))
    top = max(peaks.values())
    bottom = min([*peaks.values(), *(point.flops_per_s for point in points), left * min(levels.values()) * 10])
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom / 4, top * 2.2))
    axes.set_xlabel("operations per byte, FLOP/B")
    axes.set_ylabel("attainable rate, FLOP/s")
    axes.yaxis.set_major_formatter(lambda value, _place: _tick(value))
    axes.xaxis.set_major_formatter(lambda value, _place: _tick(value))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.suptitle(f"Roofline of the {made.arch.title}", fontsize=11)
    figure.draw_without_rendering()  # fixes the axes' size, which the slope of labels depends on
    _diagonals(axes, levels, top)
    _ceilings(axes, peaks, max(levels.values()), right)
    for bandwidth in levels.values():
        at = peaks[unit] / bandwidth
        axes.plot([at], [peaks[unit]], marker="o", markersize=5, color="black", markerfacecolor="white", zorder=4)
        _beside(axes, (at, peaks[unit]), f"{at:.1f}", (0, 6), "center")
    _points(axes, points)
    figure.savefig(path, dpi=160)


def _diagonals(axes: Axes, levels: dict[str, float], top: float) -> None:
    """One line per memory level, with its name and bandwidth along it."""
    left = axes.get_xlim()[0]
    low = axes.get_ylim()[0]
    width, height = axes.transAxes.transform((1, 1)) - axes.transAxes.transform((0, 0))
    decades = [math.log10(high / low) for low, high in (axes.get_xlim(), axes.get_ylim())]
    angle = math.degrees(math.atan2(height / decades[1], width / decades[0]))
    for name, bandwidth in levels.items():
        end = top / bandwidth
        axes.plot([left, end], [left * bandwidth, top], color="black", linestyle=_STYLES[name], linewidth=1.3)
        # From the line's lower end in the picture: low enough to be clear of the ceilings. The text stands above the
        # line, at a right angle to it.
        at = max(left * 1.3, low * 1.3 / bandwidth)
        up = math.radians(angle + 90)
        axes.annotate(
            f"{LEVELS[name]} {rate(bandwidth, 'B/s')}",
            (at, at * bandwidth),
            xytext=(4 * math.cos(up), 4 * math.sin(up)),
            textcoords="offset points",
            rotation=angle,
            rotation_mode="anchor",
            fontsize=8,
            va="bottom",
        )


def _ceilings(axes: Axes, peaks: dict[str, float], widest: float, right: float) -> None:
    """One line per arithmetic peak, from the fastest level's diagonal on; equal peaks share a label."""
    together: list[tuple[float, list[str]]] = []
    for name, peak in sorted(peaks.items(), key=lambda item: item[1]):
        if together and peak / together[-1][0] < _CLOSE:
            together[-1][1].append(PEAKS[name])
        else:
            together.append((peak, [PEAKS[name]]))
    for peak, names in together:
        axes.plot([peak / widest, right], [peak, peak], color="black", linewidth=1.3)
        _beside(axes, (right, peak), f"{_joined(names)}: {rate(peak, 'FLOP/s')}", (-2, 6), "right")


def _beside(
    axes: Axes, at: tuple[float, float], text: str, offset: tuple[float, float], side: Literal["center", "right"]
) -> None:
    """A label on white, above the grid and the dotted lines: nothing runs through it."""
    axes.annotate(
        text, at, xytext=offset, textcoords="offset points", ha=side, va="bottom", fontsize=8, bbox=_WHITE, zorder=3
    )


def _joined(names: Sequence[str]) -> str:
    """Names of peaks in one label, each kind of unit said once.

    >>> _joined(["tensor cores, float16", "tensor cores, bfloat16", "FMA units, float32"])
    'tensor cores, float16 and bfloat16; FMA units, float32'
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, dtype = name.partition(", ")
        kinds.setdefault(kind, []).append(dtype)
    return "; ".join(f"{kind}, {' and '.join(dtypes)}" for kind, dtypes in kinds.items())


def _points(axes: Axes, points: Sequence[Point]) -> None:
    """The computations, each with a dotted line down to the axis, named in a legend under the roofs."""
    low = axes.get_ylim()[0]
    for point, mark in zip(points, _MARKS, strict=False):
        axes.plot([point.intensity] * 2, [low, point.flops_per_s], color="black", linestyle=":", linewidth=1)
        label = f"{point.label}: {units.digits(point.intensity)} FLOP/B, {rate(point.flops_per_s, 'FLOP/s')}"
        (drawn,) = axes.plot([point.intensity], [point.flops_per_s], marker=mark, label=label, linestyle="none")
        drawn.set(color="black", markersize=8, markerfacecolor="0.6", zorder=5)
    if points:
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=1, borderpad=0)


def rate(value: float, unit: str) -> str:
    """A rate with its prefix at the unit.

    >>> rate(4.8e12, "B/s"), rate(254e9, "FLOP/s"), rate(12.0, "B/s")
    ('4.80 TB/s', '254 GFLOP/s', '12 B/s')
    """
    said = units.count(value)
    return f"{said[:-1]} {said[-1]}{unit}" if said[-1].isalpha() else f"{said} {unit}"


def _tick(value: float) -> str:
    """A power of ten on an axis.

    >>> _tick(1e15), _tick(1e10), _tick(100.0)
    ('1000T', '10G', '100')
    """
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:g}"
