"""A plot of a product distributed over GPUs: predicted times of the local product, the all_reduce and both, by GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matmill.analysis.scale import Limits, Scaled
from matmill.bench.plots.style import BLUE, ORANGE, VERMILLION, save


def draw(path: Path, title: str, curve: Sequence[Scaled], points: Sequence[Scaled], limits: Limits) -> None:
    """Draw ``curve`` into ``path``, whose suffix (.png, .svg) decides the format.

    The numbers of GPUs in ``points`` are marked, with their efficiency, and so is the one with the least time.
    """
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    gpus = [one.gpus for one in curve]
    axes.plot(gpus, [1e3 * one.local for one in curve], color=BLUE, linestyle="--", label="local product")
    several = [(one.gpus, one.reduction) for one in curve if one.reduction is not None]
    axes.plot(
        [count for count, _ in several],
        [1e3 * point.seconds for _, point in several],
        color=ORANGE,
        linestyle=":",
        label="all_reduce",
    )
    axes.plot(gpus, [1e3 * one.seconds for one in curve], color=VERMILLION, label="both")
    axes.plot(
        [one.gpus for one in points],
        [1e3 * one.seconds for one in points],
        color=VERMILLION,
        marker="o",
        linestyle="none",
        label="asked for, with efficiency",
    )
    for one in points:
        axes.annotate(
            f"{one.efficiency:.0%}", (one.gpus, 1e3 * one.seconds), (0, 8), textcoords="offset points", ha="center"
        )
    axes.axvline(limits.fastest, color="0.6", linewidth=0.8)
    axes.annotate(
        f"least time: {limits.fastest} GPUs",
        (limits.fastest, axes.get_ylim()[1]),
        (-4, -12),
        textcoords="offset points",
        ha="right",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(gpus, [str(count) for count in gpus], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("GPUs")
    axes.set_ylabel("ms, predicted")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11)
    save(figure, path)
