"""A plot of a layout in shared memory: the matrix column in each bank, and the words that one access reads.

One panel per layout, the plain one first, for comparison. Tints distinguish vectors of 16 bytes, numbers are columns,
and a thick frame marks the words of the access with the most conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matmill.analysis.swizzle import BANKS, VECTOR_BYTES, SharedLayout, cost, touched, words
from matmill.bench.plots.style import COLOURS, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Lines of 128 bytes shown of each layout.
LINES = 16
#: Shares of colour in the two tints, light enough for black numbers; the second round of vectors is darker.
_TINTS = (0.3, 0.55)
_CELL_INCHES = 0.27


def draw(layouts: Sequence[SharedLayout], access: str, path: Path) -> None:
    """Draw ``layouts`` of one matrix under ``access`` into ``path``, whose suffix (.png, .svg) decides the format."""
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    shown = [min(LINES, len(words(layout)[0])) for layout in layouts]
    width, height = 1.4 + BANKS * _CELL_INCHES, 0.5 + sum(0.75 + (lines + 1.4) * _CELL_INCHES for lines in shown)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(layouts), 1, squeeze=False, height_ratios=[lines + 4 for lines in shown])
    for axes, layout, lines in zip(panels.ravel(), layouts, shown, strict=True):
        _panel(axes, layout, access, lines)
    first = layouts[0]
    title = f"{first.rows}x{first.columns} {first.dtype.name} in the 32 banks, by column; framed: one access, {access}"
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _panel(axes: Axes, layout: SharedLayout, access: str, lines: int) -> None:
    """Draw one layout's first lines, and below them how many words the busiest access reads from each bank."""
    from matplotlib.patches import Rectangle  # noqa: PLC0415 — as in draw

    passes = cost(layout, access)
    rows, columns = words(layout)
    wanted = touched(layout, access, passes.worst)
    start = first_line(wanted, lines)
    vector = max(1, VECTOR_BYTES // layout.dtype.itemsize)
    for line in range(lines):
        for bank in range(BANKS):
            column = int(columns[start + line, bank])
            tint = "white" if column < 0 else _tint(column // vector)
            hatch = "xxxx" if column < 0 else None
            axes.add_patch(Rectangle((bank, line), 1, 1, facecolor=tint, edgecolor="0.5", linewidth=0.3, hatch=hatch))
            if column >= 0:
                axes.text(bank + 0.5, line + 0.55, str(column), fontsize=6.5, ha="center", va="center")
    for line, bank in zip(*np.nonzero(wanted[start : start + lines]), strict=True):
        frame = Rectangle((bank + 0.06, line + 0.06), 0.88, 0.88, fill=False, edgecolor="black", linewidth=1.6)
        axes.add_patch(frame)
    for bank, count in enumerate(wanted.sum(axis=0)):
        axes.text(bank + 0.5, lines + 0.9, str(count), fontsize=7, ha="center", va="center", weight="bold")
    axes.text(-0.3, lines + 0.9, "words wanted", fontsize=7, ha="right", va="center")
    axes.set_xlim(0, BANKS)
    axes.set_ylim(lines + 1.4, 0)
    axes.set_aspect("equal")
    axes.set_xticks([bank + 0.5 for bank in range(0, BANKS, 4)], [str(bank) for bank in range(0, BANKS, 4)], fontsize=7)
    axes.set_yticks(
        [line + 0.5 for line in range(lines)],
        [line_name(rows[start + line]) for line in range(lines)],
        fontsize=7,
    )
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    actual, ideal = int(passes.actual[passes.worst]), int(passes.ideal[passes.worst])
    name = "plain" if layout.name == "none" else layout.name
    shown = line_name(rows[start : start + lines])
    part = f"; shown: {shown} of {layout.rows}, 128 bytes a line" if len(rows) > lines else ""
    axes.set_title(f"{name}: {actual} wavefront{'s' * (actual > 1)}, ideal {ideal}{part}", fontsize=10, loc="left")


def _tint(vector: int) -> tuple[str, float]:
    """Return the background of vector ``vector`` of a row: a colour and its opacity, so that text on it can be read."""
    turn, index = divmod(vector, len(COLOURS))
    return COLOURS[index], _TINTS[turn % len(_TINTS)]


def first_line(wanted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], lines: int) -> int:
    """Return the first line to show of a layout, so that ``lines`` lines include the access's first word."""
    return min(int(wanted.any(axis=1).argmax()), len(wanted) - lines)


def line_name(rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    """Return the rows of the matrix that a line of shared memory holds.

    >>> line_name(np.array([3, 3, -1])), line_name(np.array([2, 3])), line_name(np.array([-1]))
    ('row 3', 'rows 2-3', 'padding')
    """
    held = rows[rows >= 0]
    if not held.size:
        return "padding"
    low, high = int(held.min()), int(held.max())
    return f"row {low}" if low == high else f"rows {low}-{high}"
