"""Times ``matmill.transpose_add`` on a GPU beside torch, its compiler, Triton and CuPy, and copies, all in one run.

    python benchmarks/transpose_add.py --out benchmarks/results --group article

One file per group, ``transpose_add_<gpu>_<group>.json``, written anew after every sum, so that a run which ends early
leaves what it has: ``article`` is the article's sum beside all libraries, and what a call on small matrices costs the
host; ``shapes`` are forty others beside torch, eager and compiled. Prints a table; ``make docs`` makes the tables of
``docs/ladder-transpose_add.md`` of the files.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmill.bench.clean_clock import clean_clock
from matmill.bench.environment import describe
from matmill.bench.inner_compare import needs_torch
from matmill.bench.records import by_line
from matmill.bench.sum_compare import Copies, compare, host_costs
from matmill.bench.sum_report import HEADINGS, KIND, LIBRARY_HEADINGS, cells, entries, library_cells, summary
from matmill.bench.sum_shapes import CASE, GROUPS
from matmill.bench.timing.clock import Clock
from matmill.bench.timing.device_copy import Copying
from matmill.cli.console import output, table
from matmill.runtime.gpu import GPU

#: Columns of the table, in a log that no terminal folds.
_WIDE = 150
#: Seconds before the end after which nothing is compiled any more: eager torch and a copy are still timed.
_UNCOMPILED = 30.0


@dataclass(frozen=True)
class _Tools:
    """What all groups share; no sum begins after ``end``, by ``time.monotonic``."""

    gpu: GPU
    clock: Clock
    copies: Copies
    end: float


def main() -> None:
    """Measures the groups that are asked for; ends with 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--group", choices=(*GROUPS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no sum after these (default: 540)")
    parser.add_argument("--limit", type=int, help="take this many sums of each group alone")
    args = parser.parse_args()
    needs_torch()
    gpu = GPU.get(0)
    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    right = True
    with clean_clock(gpu) as clock, Copying(gpu, CASE.nbytes) as copying:
        tools = _Tools(gpu, clock, Copies(copying), end)
        for group in GROUPS if args.group == "all" else (args.group,):
            record = _measure(group, tools, args)
            _show(record)
            right = right and all(entry.ok for entry in entries(record))
    sys.exit(0 if right else 1)


def _measure(group: str, tools: _Tools, args: argparse.Namespace) -> dict[str, Any]:
    """Measures one group into its file."""
    shapes, arch = GROUPS[group][: args.limit], tools.gpu.arch
    whole = group == CASE.kind
    record: dict[str, Any] = {
        "record": KIND,
        "group": group,
        "arch": arch.name,
        "environment": {**describe(gpu=True), "seed": args.seed},
        "asked": len(shapes),
        "host": host_costs(args.seed) if whole else [],
        "sums": [],
    }
    path = args.out / f"transpose_add_{arch.name}_{group}.json"
    for shape in shapes:
        if time.monotonic() > tools.end:
            break
        until = tools.end - _UNCOMPILED
        found = compare(arch, tools.clock, tools.copies, shape, args.seed, everything=whole, compile_until=until)
        record["sums"].append(found)
        path.write_text(by_line(record, "sums"), encoding="utf-8")
    return record


def _show(record: dict[str, Any]) -> None:
    found = entries(record)
    console = output(width=_WIDE)
    title = f"{record['group']}: {len(found)} of {record['asked']} sums on {record['arch']}"
    whole = record["group"] == CASE.kind
    headings: tuple[str, ...] = LIBRARY_HEADINGS if whole else HEADINGS
    lines = [line for entry in found for line in (library_cells(entry) if whole else [cells(entry)])]
    columns = [(heading, "right" if place else "left") for place, heading in enumerate(headings)]
    console.print(table(title, columns, lines))
    for entry in found:
        rates = ", ".join(f"{name} {rate / 1e12:.3f} TB/s" for name, rate in entry.record["copy_bytes_per_s"].items())
        absent = "; ".join(entry.record["absent"])
        said = f"  {entry.shape}: {rates}; {' and '.join(entry.record['configs'])}{'; ' if absent else ''}{absent}"
        console.print(said, soft_wrap=True)
    for one in record["host"]:
        costs = ", ".join(f"{way} {seconds * 1e6:.2f} us" for way, seconds in one["seconds"].items())
        console.print(f"  host, {one['size']}x{one['size']} {one['dtype']}: {costs}", soft_wrap=True)
    for sentence in summary(found):
        console.print(sentence, soft_wrap=True)


if __name__ == "__main__":
    main()
