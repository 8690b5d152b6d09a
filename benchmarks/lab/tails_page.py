"""The part of ``docs/correctness.md`` that is measured: products of libraries that lack terms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from lab.markdown import table
from lab.page_parts import Record, environment_of
from matmill.testing.products.terms import in_runs

MARKS = ("<!-- tails: written by `make docs` -->\n", "<!-- end of tails -->\n")


def recorded_tails(results: Path) -> list[Record]:
    """Return the records of all GPUs and versions."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("library_tails_*.json"))]


def library_tails(records: list[Record]) -> str:
    """Return a table for each record: products looked at, those that are wrong, and their k."""
    return "\n".join(part for record in records for part in _parts(record)) or "Not measured yet.\n"


def _parts(record: Record) -> Iterator[str]:
    rows = [row for row in record["rows"] if row["products"]]
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        groups.setdefault((row["library"], row["dtype"]), []).append(row)
    yield table(
        {
            "product": lambda group: group[0]["library"],
            "elements": lambda group: group[0]["dtype"],
            "products": lambda group: str(sum(row["products"] for row in group)),
            "wrong": lambda group: str(sum(row["wrong_products"] for row in group)),
            "of k": _lengths,
            "for instance": lambda group: next((_example(row) for row in group if row["described"]), ""),
        },
        list(groups.values()),
    )
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield f"{environment_of(record)} {versions}.\n"


def _lengths(group: list[Record]) -> str:
    return in_runs(sorted({k for row in group for _, _, k in row["wrong"]}))


def _example(row: Record) -> str:
    one = row["described"][0]
    return f"{' x '.join(map(str, one['sizes']))} {row['layouts']}, {one['terms']}"
