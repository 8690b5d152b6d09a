"""A plot of a product's predicted time with every tile shape: a bar for each, the chosen one darker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matmill.bench import units
from matmill.bench.plots.style import BLUE, ON_WHITE, SKY, VERMILLION, save

_ROW_INCHES = 0.3


@dataclass(frozen=True)
class Bar:
    """A tile shape with its predicted seconds in total, of arithmetic and of memory; the latter two overlap."""

    label: str
    seconds: float
    compute: float
    memory: float
    chosen: bool


def draw(title: str, bars: Sequence[Bar], path: Path) -> None:
    """Draw ``bars``, the fastest first; the suffix of ``path`` (.png, .svg) decides the format."""
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    ranked = sorted(bars, key=lambda bar: bar.seconds)
    scale, unit = (1e3, "ms") if ranked[-1].seconds >= 1e-3 else (1e6, "us")
    figure = Figure(figsize=(8, 1.5 + _ROW_INCHES * len(ranked)), layout="constrained")
    axes = figure.add_subplot()
    slots = list(range(len(ranked)))
    colours = [BLUE if bar.chosen else SKY for bar in ranked]
    drawn = axes.barh(slots, [bar.seconds * scale for bar in ranked], color=colours)
    labels = [f"{units.seconds(bar.seconds)}{', chosen' * bar.chosen}" for bar in ranked]
    axes.bar_label(drawn, labels, padding=5, fontsize=8, bbox=ON_WHITE, zorder=3)
    for name, mark, times in (
        ("arithmetic", "|", [bar.compute for bar in ranked]),
        ("memory", "x", [bar.memory for bar in ranked]),
    ):
        colour = "black" if name == "arithmetic" else VERMILLION
        axes.plot([time * scale for time in times], slots, mark, color=colour, label=name, markersize=8)
    axes.set_yticks(slots, [bar.label for bar in ranked], fontsize=9)
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * ranked[-1].seconds * scale)
    axes.set_xlabel(f"predicted time, {unit}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))
    figure.suptitle(title, fontsize=11)
    save(figure, path)
