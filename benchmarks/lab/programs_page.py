"""The part of ``docs/programs.md`` that is measured: whole PyTorch programs with and without matmill."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.front_page import between
from lab.markdown import table
from lab.page_parts import environment_of
from lab.pictures import shown

MARKS = ("<!-- programs: written by `make docs` -->\n", "<!-- end of programs -->\n")
PIECES = ("<!-- float32 programs: written by `make docs` -->\n", "<!-- end of float32 programs -->\n")
COMPILED = "<!-- compiled programs: written by `make docs` -->\n", "<!-- end of compiled programs -->\n"
RECORD, COMPILED_RECORD = "programs_h200.json", "compiled_h200.json"
#: The option of ``enable(float32=...)`` whose rows the page shows.
_OPTION = "float32_tensor"

Row = Mapping[str, Any]


def recorded_programs(results: Path) -> Row:
    """Return the record of all programs."""
    record: Row = json.loads((results / RECORD).read_text(encoding="utf-8"))
    return record


def with_programs(text: str, results: Path) -> str:
    """Replace what is between the marks by the tables of the record in ``results``."""
    record = recorded_programs(results)
    compiled = json.loads((results / COMPILED_RECORD).read_text(encoding="utf-8"))
    measured = "\n".join((programs(record), *shown("programs")))
    for marks, part in (MARKS, measured), (PIECES, in_pieces(record)), (COMPILED, compiled_programs(compiled)):
        text = between(text, marks, part)
    return text


def programs(record: Row) -> str:
    """Return the table of programs, those that gain most first, and what it was measured on."""
    rows = sorted(record["programs"], key=lambda row: -row["ratio"])
    steps = table(
        {
            "a step of": lambda row: f"`{row['name']}`: {row['title']}, {row['dtype']}",
            "torch, ms": lambda row: _ms(row["seconds"]["step"]["torch"]),
            "matmill, ms": lambda row: _ms(row["seconds"]["step"]["matmill"]),
            "times as fast": lambda row: f"{row['ratio']:.2f}",
            "torch twice": lambda row: f"{1 + row['noise']:.2f}",
            "as a CUDA graph": _as_graph,
        },
        rows,
    )
    return f"{steps}\n{environment_of(record)}\n"


def in_pieces(record: Row) -> str:
    """Return the table of float32 programs with that option, or nothing where none were measured."""
    if _OPTION not in record:
        return ""
    measured = record[_OPTION]
    steps = table(
        {
            "a step of": lambda row: f"`{row['name']}`: {row['title']}",
            "torch, ms": lambda row: _ms(row["seconds"]["step"]["torch"]),
            f"`{_OPTION}`, ms": lambda row: _ms(row["seconds"]["step"]["matmill"]),
            "times as fast": lambda row: f"{row['ratio']:.2f}",
            "as a CUDA graph": _as_graph,
            "losses from float64's: torch": lambda row: f"{row['from_float64']['losses']['torch']:.1e}",
            "matmill": lambda row: f"{row['from_float64']['losses']['matmill']:.1e}",
        },
        sorted(measured["programs"], key=lambda row: -row["ratio"]),
    )
    words = "Distances are the largest of 20 steps, over the largest loss."
    return f"{steps}\n{words} {environment_of({**record, **measured})}\n"


def compiled_programs(record: Row) -> str:
    """Return the table of compiled programs, a row each with its modes, those that gain most in a graph first."""
    by_name: dict[str, dict[str, Row]] = {}
    for row in record["programs"]:
        by_name.setdefault(row["name"], {})[row["mode"]] = row

    def cell(mode: str) -> Callable[[Mapping[str, Row]], str]:
        return lambda modes: _beside(modes[mode]) if mode in modes else "-"

    names: dict[str, Callable[[Any], str]] = {"forward and backward of": lambda rows: f"`{rows['default']['name']}`"}
    steps = table(
        names | {mode: cell(mode) for mode in ("default", "reduce-overhead", "max-autotune")},
        sorted(by_name.values(), key=lambda rows: -rows.get("reduce-overhead", rows["default"])["ratio"]),
    )
    words = "Milliseconds of torch compiled alone / with matmill, and how many times as fast that is."
    return f"{steps}\n{words} {environment_of(record)}\n"


def _beside(row: Row) -> str:
    seconds = row["seconds"]
    return f"{_ms(seconds['torch'])} / {_ms(seconds['matmill'])}: {row['ratio']:.2f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _as_graph(row: Row) -> str:
    """Return how many times as fast forward and backward are, without the host."""
    graph = row["seconds"].get("graph")
    return "-" if graph is None else f"{graph['torch'] / graph['matmill']:.2f}"
