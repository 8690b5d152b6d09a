"""The emulated records of ``benchmarks/results``, which a fresh run must repeat: rows by rung, and the comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
#: Every record of a ladder that the emulator ran, by its file's name.
EMULATED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*_emulated_*.json"))
}
#: What a row says that no seed changes.
SAME = ("rung", "source", "ok", "registers", "shared_bytes", "occupancy", "counters", "hazards", "note", "problem")
AGAIN = "the record is stale: python benchmarks/ladder.py, then make docs"


def differences(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a fresh row and a recorded one do not have in common: values of both, counters by name.

    A counter that the record does not have came later, with instructions that these kernels do not have: it is 0.
    """
    told: dict[str, Any] = {}
    for name in (name for name in SAME if name in found and found[name] != recorded[name]):
        mine, theirs = found[name], recorded[name]
        if name == "counters":
            pairs = {key: (mine.get(key, 0), theirs.get(key, 0)) for key in mine | theirs}
            told |= {key: (one, other) for key, (one, other) in pairs.items() if one != other}
        else:
            told[name] = (mine, theirs)
    return told


def rows_of(record: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a record by rung."""
    return {row["rung"]: row for row in EMULATED[record]["rows"]}
