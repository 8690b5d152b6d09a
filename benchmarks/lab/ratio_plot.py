"""A picture of many products: for each class and element type, how many times as fast as a library every product is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from matmill.bench.plots.style import COLOURS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Characters of a class's name that stand in a line beside the axis.
_NAME = 18


def draw_ratios(products: Sequence[tuple[str, str, float]], label: str, path: Path, source: str) -> None:
    """Draw a dot for every product: ``products`` are its class, its element type and the ratio of times.

    Right of 1 matmill is faster. ``label`` says which times the ratio is of, and ``source`` is as in
    :func:`~matmill.bench.plots.style.save`.
    """
    # Imported here: matplotlib is optional.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    kinds = list(dict.fromkeys(kind for kind, _, _ in products))
    dtypes = sorted({dtype for _, dtype, _ in products})
    figure = Figure(figsize=(9, 1.2 + 0.16 * len(dtypes) * len(kinds)), layout="constrained")
    axes = figure.add_subplot()
    for row, dtype in enumerate(dtypes):
        # Types of a class stand one below the other, in the order of the legend.
        offset = (row + 0.5) / len(dtypes) - 0.5
        ratios = [ratio for _, own, ratio in products if own == dtype]
        heights = [kinds.index(kind) + 0.8 * offset for kind, own, _ in products if own == dtype]
        axes.scatter(ratios, heights, s=14, color=COLOURS[row], alpha=0.7, linewidths=0, label=dtype)
    _finish(axes, kinds, [ratio for _, _, ratio in products], label)
    axes.legend(ncols=len(dtypes), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    save(figure, path, source)


def _finish(axes: Axes, kinds: Sequence[str], ratios: Sequence[float], label: str) -> None:
    """Name the classes from the top, and mark every doubling of the ratio."""
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    low, high = min(*ratios, 0.5) / 1.05, max(*ratios, 2) * 1.05
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    axes.set_xlabel(label)
    axes.set_yticks(range(len(kinds)), [fill(kind, _NAME) for kind in kinds])
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
