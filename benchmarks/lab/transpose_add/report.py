"""What a recorded comparison of ``matmill.transpose_add`` says: shares of a copy's bandwidth, and ratios to others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lab.calls import WAYS
from lab.markdown import filled, markdown
from lab.records import MEDIAN, Comparable, Format
from lab.transpose_add.shapes import CASE, GROUPS, LONG, Shape
from matmill.bench import units
from matmill.bench.libraries.transpose_add import COMPILED, COMPILED_AS_Y, EAGER

FORMAT = Format("transpose_add", "transpose_add comparison", "sums", "shape")
OURS = "matmill.transpose_add"
#: Into an ``out`` with x's layout. torch gives ``x.transpose(-2, -1) + y`` that layout, ours packs the result's rows.
OURS_AS_X = "matmill.transpose_add, out as x"
#: How much slower than a library counts as slower: what two runs of the same may differ by.
NOISE = 0.03
HEADINGS = (
    "x",
    "moved",
    "ours",
    "TB/s",
    "of a copy",
    "eager / ours",
    "compile / ours",
    "both as x",
    "both as y",
    "to the bit",
)
#: torch.compile's result and ours where both have the same layout: x's, y's.
ALIKE = ((COMPILED, OURS_AS_X), (COMPILED_AS_Y, OURS))


@dataclass(frozen=True)
class Entry(Comparable):
    """One shape of a record."""

    @property
    def shape(self) -> Shape:
        """What was asked."""
        return Shape.restored(self.record["shape"])

    @property
    def copy_rate(self) -> float:
        """Bytes per second of the fastest copy interleaved with it."""
        return float(max(self.record["copy_bytes_per_s"].values()))

    def share(self, name: str = OURS) -> float:
        """Return the share of the copy's bandwidth."""
        return self.rate(name) / self.copy_rate

    def ratio(self, name: str, way: str = MEDIAN, over: str = OURS) -> float | None:
        """Return a library's time over ours, or None where either was not timed so."""
        row, own = self.rows.get(name), self.rows.get(over)
        return None if row is None or own is None or way not in row else float(row[way] / own[way])

    @property
    def ok(self) -> bool:
        """Whether our results are eager torch's to the bit."""
        return all(self.rows[name]["same"] for name in (OURS, OURS_AS_X) if name in self.rows)

    def slower(self) -> Iterator[str]:
        """Yield each library that is faster than we are beyond noise, with how much, in the ways of calling."""
        for name in (EAGER, COMPILED):
            for share, way in self._behind(name, OURS):
                yield f"{self.shape}: {name} takes {share} of our time ({way})"

    def slower_alike(self) -> Iterator[str]:
        """Yield the same of torch.compile alone, both results with the same layout."""
        for (name, over), layout in zip(ALIKE, "xy", strict=True):
            for share, way in self._behind(name, over):
                yield f"{self.shape} as {layout}: {share} of our time ({way})"

    def _behind(self, name: str, over: str) -> Iterator[tuple[str, str]]:
        """Yield the share of our time that a library takes, in each way in which that is less beyond noise."""
        for way in (MEDIAN, *WAYS):
            ratio = self.ratio(name, way, over)
            if ratio is not None and ratio < 1 - NOISE:
                yield units.percent(ratio), way


def entries(record: Mapping[str, Any]) -> list[Entry]:
    """Return the shapes of a record."""
    return [Entry(one) for one in record["sums"]]


def cells(entry: Entry) -> list[str]:
    """Return one row of a table, under :data:`HEADINGS`."""
    ratios = [*(entry.ratio(name) for name in (EAGER, COMPILED)), *(entry.ratio(name, over=own) for name, own in ALIKE)]
    return [
        str(entry.shape),
        units.quantity(entry.record["bytes"], "B"),
        units.seconds(entry.rows[OURS][MEDIAN]),
        units.digits(entry.rate(OURS) / 1e12),
        units.percent(entry.share()),
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        "yes" if entry.ok else "NO",
    ]


def library_cells(entry: Entry) -> list[list[str]]:
    """Return a row for each of those that took part, ours first: time, TB/s, share of a copy, time over ours."""
    return [
        [
            name,
            row["version"],
            units.seconds(row[MEDIAN]),
            units.digits(entry.rate(name) / 1e12),
            units.percent(entry.share(name)),
            f"{entry.ratio(name):.2f}",
            "yes" if row["same"] else "NO",
        ]
        for name, row in entry.rows.items()
    ]


LIBRARY_HEADINGS = ("", "version", "time", "TB/s", "of a copy", "time / ours", "to the bit")


def summary(found: Sequence[Entry]) -> list[str]:
    """Return what all shapes together say, in sentences."""
    text = [f"{sum(entry.ok for entry in found)} of {len(found)} equal eager torch's to the bit."]
    long = sorted((entry for entry in found if entry.record["bytes"] >= LONG), key=Entry.share)
    if long:
        middle = median(entry.share() for entry in long)
        text.append(
            f"Of a copy's bandwidth, where at least {units.quantity(LONG, 'B')} move: {units.percent(middle)} in the "
            f"median, {units.percent(long[0].share())} at the least ({long[0].shape})."
        )
    for name in (EAGER, COMPILED):
        ratios = [ratio for entry in found if (ratio := entry.ratio(name)) is not None]
        if ratios:
            text.append(
                f"{name} takes {median(ratios):.2f} times our time in the median, {min(ratios):.2f} at the least."
            )
    slower = [line for entry in found for line in entry.slower()]
    if slower:
        text.append("Slower than others by more than noise: " + "; ".join(slower) + ".")
    alike = [line for entry in found for line in entry.slower_alike()]
    if alike:
        text.append(f"Slower than {COMPILED} by more than noise, both results in one layout: " + "; ".join(alike) + ".")
    return text


def recorded_comparisons(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the comparisons recorded in ``folder``, by group."""
    return FORMAT.recorded(folder, GROUPS)


def page_part(comparisons: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the comparisons as a part of the ladder's page."""
    text = filled(
        "## `matmill.transpose_add` beside others\n\n"
        "All take the same tensors of torch, interleaved, in one run; `of a copy` refers to the faster of our copy "
        "kernel and torch's `copy_`, interleaved with each shape. Our results are packed by rows, as y is; torch gives "
        "`x.transpose(-2, -1) + y` the layout of x, packed by columns. Where one side is short these are two tasks of "
        "different speed, so both are compared as well: `both as x` is torch.compile's time over ours into an `out` "
        "with x's layout, `both as y` its time for `y + x.transpose(-2, -1)`, to which it gives y's layout.\n\n"
        "    python benchmarks/compare.py --out benchmarks/results"
    )
    return "\n".join([text, *(_section(record) for record in comparisons.values())])


def _section(record: Mapping[str, Any]) -> str:
    """Return one comparison as Markdown."""
    result = entries(record)
    parts = [f"x {result[0].shape}:\n"] if record["group"] == CASE.kind else []
    if record["group"] == CASE.kind:
        parts += [markdown(list(LIBRARY_HEADINGS), library_cells(entry)) for entry in result]
    else:
        kinds = dict.fromkeys(entry.shape.kind for entry in result)
        few = [min((one for one in result if one.shape.kind == kind), key=Entry.share) for kind in kinds]
        parts += [
            f"{' '.join(summary(result))}\n\nOf each class the shape that reaches least of a copy's bandwidth:\n",
            markdown(list(HEADINGS), [cells(entry) for entry in few]),
        ]
    if record.get("host"):
        headings = ["", *(f"{one['size']}x{one['size']} {one['dtype']}" for one in record["host"])]
        ways = list(record["host"][0]["seconds"])
        rows = [[way, *(units.seconds(one["seconds"][way]) for one in record["host"])] for way in ways]
        parts.append("What a call costs the host:\n\n" + markdown(headings, rows))
    return "\n".join(parts)
