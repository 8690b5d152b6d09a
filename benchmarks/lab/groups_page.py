"""The measured part of ``docs/groups.md``: groups and lists beside torch's grouped_mm and a loop of torch.mm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lab.markdown import markdown
from lab.page_parts import Record, environment_of
from lab.shapes_page import mean

MARKS = ("<!-- groups: written by `make docs` -->\n", "<!-- end of groups -->\n")
_OURS, _LISTS, _LOOP, _GROUPED = "matmill", "matmill, lists", "loop", "grouped_mm"
#: Columns: a way to compute, and the one whose time is divided by its own.
_COLUMNS = {
    "`grouped_mm` beside torch's": (_OURS, _GROUPED),
    "beside a loop": (_OURS, _LOOP),
    "lists beside a loop": (_LISTS, _LOOP),
}


def recorded_groups(results: Path) -> Record:
    """Return the record of groups."""
    record: Record = json.loads((results / "groups_h100.json").read_text(encoding="utf-8"))
    return record


def measured_groups(record: Record) -> str:
    """Return the table of speeds as a program sees them, with the host's part, and what it was measured on."""
    kinds = dict.fromkeys((row["name"], row["form"], row["dtype"]) for row in record["rows"])
    lines = []
    for kind in kinds:
        rows = [row for row in record["rows"] if (row["name"], row["form"], row["dtype"]) == kind]
        counts = sorted({row["groups"] for row in rows})
        groups = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        name, form, dtype = kind
        lines.append([f"{name}, by {form}: {dtype}", groups, *(_ratio(rows, *pair) for pair in _COLUMNS.values())])
    shown = markdown(["products", "groups", *_COLUMNS], lines)
    return f"{shown}\n{environment_of(record)}\n"


def _ratio(rows: Sequence[Record], own: str, other: str) -> str:
    """Return the mean and the least of the other's time over the own, or a dash where the other takes none."""
    ratios = [row["wall"][other] / row["wall"][own] for row in rows if other in row["wall"]]
    if not ratios:
        return "-"
    least = min(ratios)
    return f"{mean(ratios):.2f}" if len(ratios) == 1 else f"{mean(ratios):.2f} (least {least:.2f})"
