"""Times ``matmill.inner`` on a GPU beside torch.mm, torch.einsum and CuPy, and reading alone, all in one run.

    python benchmarks/inner.py --out benchmarks/results --group bandwidth

One file per group, ``inner_<gpu>_<group>.json``, written anew after every product, so that a run which ends early
leaves what it has. Prints a table; ``make docs`` makes ``docs/inner-results.md`` of the files.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmill.arch import Arch
from matmill.bench.clean_clock import Reading
from matmill.bench.compiler import KernelCompiler
from matmill.bench.environment import describe
from matmill.bench.inner_compare import compare_long, compare_short, needs_torch
from matmill.bench.inner_entry import LIBRARY
from matmill.bench.inner_groups import GROUPS, Group
from matmill.bench.inner_report import HEADINGS, KIND, NOISE, cells, entries, lines, said
from matmill.bench.probe.samples import Runs
from matmill.bench.records import by_line
from matmill.choose import choose
from matmill.cli.console import output, table
from matmill.kernels.inner import INNER
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

#: Columns of the table, in a log that no terminal folds.
_WIDE = 150


@dataclass(frozen=True)
class _Tools:
    """What all groups share; no product begins after ``end``, by ``time.monotonic``."""

    runs: Runs
    compiler: KernelCompiler
    end: float


def main() -> None:
    """Measures the groups that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--group", choices=(*GROUPS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no product after these (default: 540)")
    parser.add_argument("--seconds-each", type=float, default=0.02, help="of timed work per competitor (default: 0.02)")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that compile")
    parser.add_argument("--limit", type=int, help="take this many products of each group alone")
    args = parser.parse_args()
    needs_torch()
    gpu = GPU.get(0)
    end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    groups = list(GROUPS.values()) if args.group == "all" else [GROUPS[args.group]]
    chosen = {group.name: group.problems()[: args.limit] for group in groups}
    with KernelCompiler(gpu.arch.target, args.workers) as compiler, Runs(gpu) as runs:
        for problems in chosen.values():
            for problem in problems:
                _order(compiler, problem, gpu.arch)
        for group in groups:
            _measure(group, chosen[group.name], _Tools(runs, compiler, end), args)


def _order(compiler: KernelCompiler, problem: Gemm, arch: Arch) -> None:
    """Has the kernel of ``problem`` compiled, where it is the inner kernel."""
    kernel = choose(problem, arch).kernel
    if kernel.entry == INNER.entry:
        compiler.order([kernel], problem.dtype)


def _measure(group: Group, problems: list[Gemm], tools: _Tools, args: argparse.Namespace) -> None:
    runs, compiler = tools.runs, tools.compiler
    environment = {**describe(gpu=True), "seed": args.seed}
    record: dict[str, Any] = {
        "record": KIND,
        "group": group.name,
        "arch": runs.arch.name,
        "environment": environment,
        "asked": len(problems),
        "products": [],
    }
    path = args.out / f"inner_{runs.arch.name}_{group.name}.json"
    reading = None if group.small else Reading(runs)
    for problem in problems:
        if time.monotonic() > tools.end:
            break
        kernel = choose(problem, runs.arch).kernel
        if kernel.entry == INNER.entry:
            compiler.binary(kernel, problem.dtype)
        if reading is None:
            found = compare_short(runs, problem, args.seed)
        else:
            found = compare_long(runs, reading, problem, args.seed, seconds_each=args.seconds_each)
        record["products"].append(found)
        path.write_text(by_line(record, "products"), encoding="utf-8")
    if reading is not None:
        reading.close()
    _show(group, record)


def _show(group: Group, record: dict[str, Any]) -> None:
    found = entries(record)
    columns = [(heading, "left" if not heading else "right") for heading in HEADINGS]
    made = lines(group, found)
    title = f"{group.title}: {len(found)} of {record['asked']} products on {record['arch']}"
    console = output(width=_WIDE)
    console.print(table(title, columns, [cells(line) for line in made]))
    slower = dict.fromkeys(said(entry) for line in made for entry in line.slower)
    if slower:
        console.print(f"slower than {LIBRARY} by more than {NOISE:.0%}: {'; '.join(slower)}", soft_wrap=True)
    if not group.small:
        for entry in sorted(found, key=lambda entry: entry.floor_share())[:8]:
            shares = f"{entry.read_share():.1%} of reading, {entry.fma_share():.1%} of multiply-adds"
            config = entry.record["config"]
            console.print(f"  {said(entry)}: {shares}, {LIBRARY}/ours {entry.speedup():.2f}; {config}", soft_wrap=True)


if __name__ == "__main__":
    main()
