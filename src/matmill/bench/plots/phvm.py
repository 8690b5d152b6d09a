"""A plot of the PHVM model's curve over GS, and of a measured one from a file.

A measured curve is a JSON list with one object per launch configuration, in any order:

    [{"GS": 864, "BS": 256, "seconds": 0.0041}, …]

GS (blocks) and BS (threads of a block) are positive whole numbers, each pair at most once; ``seconds`` is the time of
one product, positive. Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matmill.analysis.phvm import PhvmPrediction
from matmill.arch import Arch
from matmill.bench.plots.style import BLUE, ORANGE, VERMILLION, save
from matmill.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A value by (GS, BS): the seconds of each measured launch.
Curve = Mapping[tuple[int, int], float]

_LABELS = {"corrected": "model, corrected", "printed": "model, printed", "measured": "measured"}
#: Lines and marks that differ in more than colour.
_STYLES: dict[str, dict[str, Any]] = {
    "corrected": {"color": BLUE, "linestyle": "-", "marker": "o", "markersize": 5},
    "printed": {"color": ORANGE, "linestyle": "--", "marker": "s", "markersize": 9, "markerfacecolor": "white"},
    "measured": {"color": VERMILLION, "linestyle": ":", "marker": "^", "markersize": 7, "markerfacecolor": "white"},
}

#: The most blocks that a GPU launches, and more seconds than any measurement takes.
_MOST_SIZE, _MOST_SECONDS = 2**31 - 1, 1e9


def read_measured(path: Path, argument: str = "--measured") -> Curve:
    """Return the measured curve in a file.

    Raises :class:`~matmill.errors.ArgumentError` if it cannot be read or is not such a list.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _malformed(argument, f"{str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _malformed(argument, f"{str(path)!r}, which is not JSON ({error})") from None
    if not isinstance(rows, list) or not rows:
        raise _malformed(argument, f"{str(path)!r}, which holds no list of rows")
    times: dict[tuple[int, int], float] = {}
    for index, row in enumerate(rows):
        key, seconds = _row(row, argument, f"row {index} of {str(path)!r}")
        if key in times:
            raise _malformed(argument, f"{str(path)!r} with GS {key[0]}, BS {key[1]} twice")
        times[key] = seconds
    return times


def draw_curve(
    path: Path, title: str, arch: Arch, readings: Mapping[str, Sequence[PhvmPrediction]], measured: Curve
) -> None:
    """Draw predicted cycles over GS into ``path``, whose suffix (.png, .svg) decides the format.

    ``readings`` has the predictions for every feasible launch by the reading's name. The upper plot has all curves on
    one logarithmic scale, in cycles and in milliseconds at the arch's clock. The lower plot has the corrected curve and
    the measured one (which may be empty), each in per cent above its least value, because the differences are too small
    for the upper plot.
    """
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    panels = 3 if measured else 2
    figure = Figure(figsize=(8, 2.3 + 2.3 * panels), layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, height_ratios=[1.6, *[1.0] * (panels - 1)])
    corrected = {(point.gs, point.bs): point.cycles for point in readings["corrected"]}
    for name, curve in readings.items():
        _draw(axes[0], {(point.gs, point.bs): point.cycles for point in curve}, name, corrected)
    _draw(axes[0], {at: seconds * arch.boost_hz for at, seconds in measured.items()}, "measured", corrected)
    _finish_absolute(axes[0], arch)
    _above_least(axes[1], corrected, "corrected", corrected)
    if measured:
        _above_least(axes[2], measured, "measured", corrected)
    _name_launches(axes[-1], readings["corrected"])
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _draw(axes: Axes, curve: Curve, name: str, feasible: Curve) -> None:
    """Draw one curve over GS: feasible launches joined by a line, others only as marks."""
    if not curve:
        return
    least = min(sorted(curve), key=curve.__getitem__)
    joined = sorted(at for at in curve if at in feasible)
    apart = sorted(at for at in curve if at not in feasible)
    label = f"{_LABELS[name]} (least at GS {least[0]}, BS {least[1]})"
    axes.plot([gs for gs, _ in joined], [curve[at] for at in joined], label=label, **_STYLES[name])
    axes.plot([gs for gs, _ in apart], [curve[at] for at in apart], **{**_STYLES[name], "linestyle": "none"})


def _finish_absolute(axes: Axes, arch: Arch) -> None:
    """Label cycles on the left and milliseconds on the right, with the legend above."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 — as in draw_curve

    hz = arch.boost_hz
    axes.set_yscale("log")
    right = axes.secondary_yaxis(
        "right",
        functions=(
            lambda cycles: np.asarray(cycles, np.float64) * 1e3 / hz,
            lambda ms: np.asarray(ms, np.float64) * hz / 1e3,
        ),
    )
    for axis in (axes.yaxis, right.yaxis):
        # 200M, not 2 x 10^8: a curve may span less than one power of ten.
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _position: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("cycles")
    right.set_ylabel(f"ms at {hz / 1e9:.4g} GHz")
    axes.spines[["top"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, ncols=1, loc="lower left", bbox_to_anchor=(0, 1.0))


def _short(value: float) -> str:
    """Format a round number for an axis.

    >>> _short(2e8), _short(1e10), _short(2000.0), _short(0.02)
    ('200M', '10G', '2000', '0.02')
    """
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:g}{letter}"
    return f"{value:,.0f}" if value >= 1e4 else f"{value:g}"


def _above_least(axes: Axes, curve: Curve, name: str, feasible: Curve) -> None:
    """Draw one curve in per cent above its least value, and label that value."""
    least = min(sorted(curve), key=curve.__getitem__)
    _draw(axes, {at: 100 * (value / curve[least] - 1) for at, value in curve.items()}, name, feasible)
    axes.plot([least[0]], [0], color="black", marker="*", markersize=14, linestyle="none")
    axes.set_ylim(bottom=-0.1 * axes.get_ylim()[1])  # room for the star
    axes.set_ylabel(f"{_LABELS[name]}:\n% above its least", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.85", linewidth=0.6)


def _name_launches(axes: Axes, curve: Sequence[PhvmPrediction]) -> None:
    """Label every feasible launch on a logarithmic axis of GS with its two numbers."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([point.gs for point in curve], [f"{point.gs}\n{point.bs}" for point in curve])
    axes.minorticks_off()
    axes.set_xlabel("upper row: GS, blocks; lower row: BS, threads of a block")


def _row(row: object, argument: str, where: str) -> tuple[tuple[int, int], float]:
    if not isinstance(row, dict):
        raise _malformed(argument, f"{where}, which is no object")
    sizes = [row.get("GS"), row.get("BS")]
    seconds = row.get("seconds")
    if any(not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST_SIZE for size in sizes):
        raise _malformed(argument, f"{where}, where GS and BS are {sizes[0]!r} and {sizes[1]!r}")
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < _MOST_SECONDS:
        raise _malformed(argument, f"{where}, where seconds is {seconds!r}")
    return (int(row["GS"]), int(row["BS"])), float(seconds)


def _malformed(argument: str, got: str) -> ArgumentError:
    return ArgumentError(
        argument=argument,
        got=got,
        wanted='a JSON list of rows like {"GS": 864, "BS": 256, "seconds": 0.0041}',
        fix="GS and BS are whole numbers from 1 on, each pair once; seconds is a number between 0 and 1e9.",
    )
