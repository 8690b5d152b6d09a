"""A picture of many products: for each class and element type, how many times as fast as a library every product is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from matmill.bench.plots.style import COLOURS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Characters in a line of a class's name beside the axis, and of the title.
_NAME, _TITLE = 18, 46


#: A product's class, its element type or the library beside it, and the ratio of times.
Ratio = tuple[str, str, float]
#: Ratios as far from 1 as this are a gain or a loss.
_SAME = 1.03


def balance(products: Sequence[Ratio]) -> str:
    """Return in how many of the products matmill is faster and slower.

    >>> balance([("tall", "float32", 1.5), ("tall", "float16", 1.0), ("wide", "float32", 0.9)])
    'over 3% faster in 1 of 3, over 3% slower in 1'
    """
    ratios = [ratio for _, _, ratio in products]
    faster, slower = sum(ratio > _SAME for ratio in ratios), sum(ratio < 2 - _SAME for ratio in ratios)
    return f"over 3% faster in {faster} of {len(ratios)}, over 3% slower in {slower or 'none'}"


def draw_ratios(products: Sequence[Ratio], title: str, label: str, path: Path, source: str) -> None:
    """Draw a dot for every product, right of 1 where matmill is faster.

    ``title`` says what is to be seen, ``label`` which times the ratio is of, and ``source`` is as in
    :func:`~matmill.bench.plots.style.save`.
    """
    # Imported here: matplotlib is optional.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    kinds = list(dict.fromkeys(kind for kind, _, _ in products))
    dtypes = sorted({dtype for _, dtype, _ in products})
    figure = Figure(figsize=(5.5, 1.9 + 0.16 * len(dtypes) * len(kinds)), layout="constrained")
    axes = figure.add_subplot()
    for row, dtype in enumerate(dtypes):
        # Types of a class stand one below the other, in the order of the legend.
        offset = (row + 0.5) / len(dtypes) - 0.5
        ratios = [ratio for _, own, ratio in products if own == dtype]
        heights = [kinds.index(kind) + 0.8 * offset for kind, own, _ in products if own == dtype]
        axes.scatter(ratios, heights, s=22, color=COLOURS[row], alpha=0.8, linewidths=0, label=dtype)
    _finish(axes, kinds, [ratio for _, _, ratio in products], label)
    figure.suptitle(fill(title, _TITLE), fontsize=12, fontweight="bold")
    axes.legend(ncols=len(dtypes), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    save(figure, path, source)


def _finish(axes: Axes, kinds: Sequence[str], ratios: Sequence[float], label: str) -> None:
    """Name the classes from the top, and mark every doubling of the ratio."""
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    low, high = min(*ratios, 0.5) / 1.05, max(*ratios, 2) * 1.05
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    axes.set_xlabel(f"{label}:\nright of 1 matmill is faster")
    axes.set_yticks(range(len(kinds)), [fill(kind, _NAME) for kind in kinds])
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
