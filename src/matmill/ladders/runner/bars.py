"""A ladder's result as bars: what each rung, with one idea more, reaches of a library's rate or of the GPU's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from matmill.bench import units
from matmill.bench.plots.style import GREY, SKY, save
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.results import BaselineRow, Outcome, Row

#: In points: the picture's width, the left end and the greatest length of bars, the height of a row, and its text.
_WIDTH, _LEFT, _LONGEST, _ROW, _TEXT = 460, 132, 266, 22, 13
#: Characters in a line of the title, and of a note.
_TITLE, _NOTE = 46, 80
#: From here on a share is written as a multiple.
_MULTIPLE = 1.25
#: Missing rungs are named up to this number.
_NAMED = 4


@dataclass(frozen=True)
class Bar:
    """The share of a rung, or of a library for comparison, with words on the bar."""

    label: str
    share: float
    words: str = ""
    ok: bool = True
    resized: bool = False
    library: bool = False

    @property
    def name(self) -> str:
        """The label, marked where the rung is wrong or ran at another size."""
        return f"{self.label}{' *' * self.resized}" if self.ok else f"{self.label}: WRONG"


@dataclass(frozen=True)
class Group:
    """Bars of one name, for instance what multiplies. ``full`` names what they are shares of, ``rate`` is its rate."""

    name: str
    full: str
    rate: str
    bars: Sequence[Bar]
    #: Of groups of rates.
    dtype: str = ""

    @property
    def height(self) -> int:
        """The height of the heading, the name of the line at 1, and the bars."""
        return (50 if self.name else 30) + _ROW * len(self.bars)

    @property
    def most(self) -> float:
        """The greatest share."""
        return max((bar.share for bar in self.bars), default=0.0)

    @property
    def rescaled(self) -> bool:
        """Tell whether a share is so great that the group has a scale of its own."""
        return self.most >= _MULTIPLE

    def best(self, *, library: bool = False) -> Bar | None:
        """Return the fastest rung, or library for comparison, with a right result."""
        right = [bar for bar in self.bars if bar.ok and bar.library is library]
        return max(right, key=lambda bar: bar.share, default=None)


def rate(row: Row | BaselineRow, outcome: Outcome) -> float:
    """Return a row's rate in the unit of its ladder, 0 if it has none."""
    return float(getattr(row, outcome.subject.rate) or 0.0)


def full_rate(outcome: Outcome) -> tuple[str, float]:
    """Return the name and rate that shares refer to: the best library's, or the limit's, or the fastest rung's."""
    libraries = [(base.name, rate(base, outcome)) for base in outcome.baselines]
    if libraries and LADDERS[outcome.ladder].groups:
        name, best = max(libraries, key=lambda library: library[1])
        return name.split(",")[0].split(" (")[0], best
    peak = outcome.subject.peak(outcome.problem, outcome.arch)
    if peak:
        return f"the {outcome.subject.limit_name}", peak / 1e12
    return max([*((row.rung, rate(row, outcome)) for row in outcome.rows), *libraries], key=lambda one: one[1])


def groups_of(outcome: Outcome) -> list[Group]:
    """Return the bars of a run on a GPU; libraries follow where shares refer to a limit."""
    ladder = LADDERS[outcome.ladder]
    names = ladder.groups or {"": ""}
    order = [rung.name for rung in ladder.rungs]
    ideas = {rung.label: rung.idea for rung in ladder.rows}
    full, whole = full_rate(outcome)
    whole = whole or 1.0  # of a run without a right result
    others = () if ladder.groups else outcome.baselines
    libraries = [Bar(base.name, rate(base, outcome) / whole, ok=base.ok, library=True) for base in others]
    by_first: dict[str, list[Row]] = {}
    first = ""
    for row in outcome.rows:
        if family(row.rung) in order:  # the production row belongs to the rung before it
            first = [name for name in names if not name or order.index(name) <= order.index(family(row.rung))][-1]
        if row.ok is not None:
            by_first.setdefault(first, []).append(row)
    groups = []
    for first, rows in by_first.items():
        bars = [
            Bar(row.rung, rate(row, outcome) / whole, ideas.get(row.rung, ""), bool(row.ok), _resized(row, outcome))
            for row in _best_of_families(rows, outcome)
        ]
        text = f"{units.digits(whole)} {outcome.subject.unit}"
        groups.append(Group(names[first], full, text, [*bars, *libraries], outcome.problem.dtype.name))
    return groups


def family(label: str) -> str:
    """Return a rung's name without its parameter."""
    return label.partition("(")[0]


def _resized(row: Row, outcome: Outcome) -> bool:
    subject = outcome.subject
    return row.problem is not None and subject.sizes(subject.problem(row.problem)) != subject.sizes(outcome.problem)


def _best_of_families(rows: Sequence[Row], outcome: Outcome) -> list[Row]:
    """Return the rows that are the fastest of their family, or wrong; all, if they are of one family."""
    best: dict[str, float] = {}
    for row in rows:
        best[family(row.rung)] = max(best.get(family(row.rung), 0.0), rate(row, outcome) if row.ok else 0.0)
    return [row for row in rows if len(best) == 1 or not row.ok or rate(row, outcome) == best[family(row.rung)]]


def sentence(groups: Sequence[Group]) -> str:
    """Return what the bars of runs on a GPU show."""
    clauses: list[str] = []
    for group in groups:
        best, library = group.best(), group.best(library=True)
        if best is None:
            continue
        if not group.name:
            than = f", {library.name} {share_text(library.share)}" if library else ""
            return f"{best.label} reaches {share_text(best.share)} of {group.full}{than}"
        first = next(bar for bar in group.bars if bar.ok)
        reached = f" from {first.share:.0%} to {best.share:.0%}" if best is not first else f" to {best.share:.0%}"
        if group.rescaled:
            reached = f" to {units.digits(best.share)} times its rate"
        clauses.append(group.name + reached + ("" if clauses else f" of {group.full}"))
    return f"One idea at a time takes {', '.join(clauses)}" if clauses else "No rung has a right result"


def share_text(share: float) -> str:
    """Format a share, a large one as a multiple.

    >>> share_text(0.1125), share_text(1.0117), share_text(3.816)
    ('11.2%', '101.2%', '3.82 x')
    """
    return f"{units.digits(share)} x" if share >= _MULTIPLE else units.percent(share)


def notes_of(outcome: Outcome) -> list[str]:
    """Return what the reader must know: the run, rungs that ran at another size, and those that did not run."""
    where = f"on {outcome.arch.title}" if outcome.on == "gpu" else f"emulated for {outcome.arch.title}"
    notes = [f"{outcome.ladder} ladder, {outcome.subject.title(outcome.problem)}, {where}"]
    if any(_resized(row, outcome) for row in outcome.rows):
        notes.append("* at the nearest size that the rung takes")
    ran = {row.rung for row in outcome.rows if row.ok is not None}
    missing = [rung.label for rung in LADDERS[outcome.ladder].rows if rung.label not in ran]
    if missing:
        names = ", ".join(missing) if len(missing) <= _NAMED else f"{len(missing)} rungs of the {outcome.ladder} ladder"
        notes.append(f"not run here: {names}")
    return notes


def draw_bars(title: str, notes: Sequence[str], groups: Sequence[Group], path: Path, source: str = "") -> None:
    """Draw a picture with a title and notes; for the suffix of ``path`` and for ``source`` see :func:`.style.save`."""
    # Imported here, because matplotlib is optional and slow to load. Figure, not pyplot, to need no window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 — see above

    head: list[tuple[str, int, dict[str, Any]]]
    head = [(line, 22, {"fontsize": 16, "fontweight": "bold"}) for line in wrap(title, _TITLE)]
    head += [(line, 16, {"fontsize": 11, "color": GREY}) for note in notes for line in wrap(note, _NOTE)]
    height = 20 + sum(high for _, high, _ in head) + sum(group.height for group in groups)
    figure = Figure(figsize=(_WIDTH / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    y = 14
    for line, high, style in head:
        axes.text(0, y, line, va="center", **style)
        y += high
    for group in groups:
        y += group.height
        _draw_group(axes, group, y)
    save(figure, path, source)


def _draw_group(axes: Any, group: Group, bottom: float) -> None:
    """Draw a bar for each rung with words on it and its share behind it, and a line at 1."""
    scale = _LONGEST / max(1.06, group.most)
    full, best, first = _LEFT + scale, group.best() if group.dtype else None, bottom - _ROW * len(group.bars)
    heading = group.name if group.dtype in group.name else f"{group.name}, {group.dtype}"
    heading += ": another scale" * (group.rescaled and bool(group.dtype))
    axes.text(0, first - 32, heading if group.name else "", fontsize=_TEXT + 1, fontweight="bold", va="center")
    axes.text(full, first - 12, f"{group.full} {group.rate}", fontsize=_TEXT - 1, ha="right", va="center", color=GREY)
    for index, bar in enumerate(group.bars):
        y, colour, weight = first + _ROW * (index + 0.5), GREY if bar.library else SKY, "bold" if bar is best else None
        axes.barh(y, bar.share * scale, 0.8 * _ROW, left=_LEFT, color=colour if bar.ok else "none", edgecolor=colour)
        axes.text(_LEFT - 6, y, bar.name, fontsize=_TEXT, fontweight=weight, ha="right", va="center")
        # Words stand clear of the line: behind one in the left half.
        start = full if scale < _LONGEST / 2 else _LEFT
        axes.text(start + 5, y, bar.words, fontsize=_TEXT - 1, va="center", zorder=3)
        share = share_text(bar.share) if bar.share else ""
        axes.text(_WIDTH, y, share, fontsize=_TEXT, fontweight=weight, ha="right", va="center")
    axes.plot([full, full], [first - 4, bottom], color="black", linewidth=1.2)
