"""The style of matmill's plots: colours for the colour-blind too, in light and dark, labels at the ends of lines."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matmill.page.document import SCHEME

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito, "Color Universal Design" (2008), without its yellow, which is too pale for a line.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
#: The colour of libraries and notes.
GREY = "#737373"
#: The background of text that a line may cross.
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
#: In points: the size of labels, and the distance between two labels one above the other.
LABEL_SIZE, LABEL_GAP = 8, 10.5


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Spread labels at least ``gap`` apart and between ``low`` and ``high``, as near as can be to ``wanted``.

    The squared distances are least: positions minus the accumulated gaps are an isotonic regression of the wanted
    positions. If there is not enough room, the last ones are beyond ``high``.

    >>> spread([10, 0, 9], 4, 0, 100), spread([1, 1], 4, 0, 100)
    ([11.5, 0.0, 7.5], [0.0, 4.0])
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    groups: list[
        tuple[float, int]
    ] = []  # for each group of labels that touch, the sum of their positions and their number
    for rank, index in enumerate(order):
        total, count = wanted[index] - rank * gap, 1
        while groups and groups[-1][0] / groups[-1][1] >= total / count:
            more, further = groups.pop()
            total, count = total + more, count + further
        groups.append((total, count))
    flat = [total / count for total, count in groups for _ in range(count)]
    most = max(low, high - gap * (len(wanted) - 1))
    positions = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        positions[index] = min(max(flat[rank], float(low)), most) + rank * gap
    return positions


#: Variables of :data:`~matmill.page.document.SCHEME` that replace colours in an .svg; black text has no colour there.
_VARIABLES = {"#000000": "ink", "#ffffff": "paper", "#e6e6e6": "edge", GREY: "quiet", BLUE: "bar", SKY: "pale"}


def save(figure: Figure, path: Path, source: str = "") -> None:
    """Write a figure into ``path``, whose suffix (.png, .svg) decides the format.

    An .svg has no background, real text and the colours of the reader's scheme, light or dark. ``source`` is stored in
    the file, so that stale pictures of records are recognised.
    """
    from matplotlib import rc_context  # noqa: PLC0415 — optional and slow to load

    metadata: dict[str, str | None] = {"Description": source} if source else {}
    if path.suffix != ".svg":
        figure.savefig(path, dpi=120, bbox_inches="tight", metadata=metadata)
        return
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "matmill"}):
        metadata |= {"Date": None}
        figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata=metadata)
    text = re.sub(r"px ('[^;\"]*|sans-serif)(?=[;\"])", "px system-ui, sans-serif", file.getvalue())
    for colour, variable in _VARIABLES.items():
        text = re.sub(f': {colour}(?=[;"])', f": var(--{variable})", text, flags=re.IGNORECASE)
    style = f"<style>{SCHEME}svg text {{ fill: var(--ink); }}</style>"
    path.write_text(re.sub(r"(<svg [^>]*>)", rf"\1{style}", text, count=1), encoding="utf-8")


def name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], column: float) -> None:
    """Label lines at their right ends: ``ends`` are x, y, name and colour, ``column`` is the labels' x.

    Labels that would overlap are moved up or down, with a thin line to each. The limits and the size of ``axes`` must
    be final.
    """
    pixels = axes.figure.dpi / 72  # pixels per point
    heights = [float(axes.transData.transform((x, y))[1]) / pixels for x, y, _, _ in ends]
    low, high = (float(value) / pixels for value in axes.transAxes.transform([(0, 0), (0, 1)])[:, 1])
    for (x, y, name, colour), moved in zip(ends, spread(heights, LABEL_GAP, low, high), strict=True):
        to = axes.transData.inverted().transform((0, moved * pixels))[1]
        axes.plot([x, column], [y, to], color=colour, linewidth=0.5, clip_on=False)
        axes.annotate(
            name,
            (column, to),
            (3, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=LABEL_SIZE,
            annotation_clip=False,
        )
