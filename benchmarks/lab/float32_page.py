"""The part of ``docs/precision.md`` that is measured: float32 products in pieces beside cuBLAS's SGEMM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from lab.markdown import table
from lab.page_parts import Record, environment_of

MARKS = ("<!-- float32: written by `make docs` -->\n", "<!-- end of float32 -->\n")
#: Names of the record: torch's product in float32, and the precision that allows every method.
SGEMM, IN_PIECES = "torch.mm", "float32_tensor"


def recorded_float32(results: Path) -> Record:
    """Return the record of all float32 products."""
    record: Record = json.loads((results / "float32_h200.json").read_text(encoding="utf-8"))
    return record


def float32_products(record: Record) -> str:
    """Return the table of float32 products, and what it was measured on."""

    def times(precision: str) -> Callable[[Record], str]:
        return lambda row: f"{row['seconds'][SGEMM] / row['seconds'][precision]:.2f}"

    def error(name: str) -> Callable[[Record], str]:
        return lambda row: f"{row['errors'][name]:.1f}"

    shown = table(
        {
            "product": lambda row: f"{row['kind']}{_of_range(row)}: {row['m']} x {row['n']} x {row['k']}",
            "layouts": lambda row: row["layouts"],
            "torch.mm, us": lambda row: f"{1e6 * row['seconds'][SGEMM]:.0f}",
            "FMA": times("default"),
            "fp16x3": times("fp16x3"),
            "tf32x3": times("tf32x3"),
            "float32_tensor": times(IN_PIECES),
            "error of torch.mm": error(SGEMM),
            "of float32_tensor": error(IN_PIECES),
        },
        record["products"],
    )
    return f"{shown}\n{environment_of(record)}\n"


def _of_range(row: Record) -> str:
    return f", phi = {row['phi']:g}" if row["phi"] else ""
