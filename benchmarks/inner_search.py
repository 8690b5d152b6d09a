"""Times configurations of the inner kernel on two grids of products: what its cost model is fitted on and judged by.

    python benchmarks/inner_search.py --out benchmarks/results/inner_search_h200.jsonl --part fit --seconds 500

Needs a GPU and torch, but for ``--compile-only``, which fills the cache of compiled kernels for ``--arch`` and stops.
Stops by itself when ``--seconds`` are over, with all that was measured in the file; the same command then goes on where
it stopped. Kernels are compiled by other processes meanwhile.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from matmill import arch as arches
from matmill.arch import DEFAULT
from matmill.bench.clean_clock import clean_clock
from matmill.bench.compiler import KernelCompiler
from matmill.bench.contest import Rules
from matmill.bench.environment import describe
from matmill.bench.inner_grids import fit_grid, judge_grid
from matmill.bench.inner_search import LIBRARY, PARTS, Record, Task, Tools, candidates, search, tasks, unit_tasks
from matmill.config import Config
from matmill.kernels.inner import INNER
from matmill.runtime.gpu import GPU

_PARALLEL = max(1, (os.cpu_count() or 2) - 2)
#: The longest that the last product may take after the time is over.
_RESERVE = 15.0
#: Products whose kernels are ordered before their turn.
_AHEAD = 40


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the record, to which lines are appended")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=500.0, help="when to stop (default: 500)")
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--rounds", type=int, default=5, help="of whatever is not far from the best (default: 5)")
    parser.add_argument("--workers", type=int, default=_PARALLEL, help=f"processes that compile (default: {_PARALLEL})")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of kernels; needs no GPU")
    parser.add_argument("--arch", default=DEFAULT, help=f"what --compile-only compiles for (default: {DEFAULT})")
    parser.add_argument("--exhaustive", action="store_true", help="searches alone that time every configuration")
    parser.add_argument("--units", action="store_true", help="products alone that matrix units can multiply")
    parser.add_argument("--limit", type=int, help="take this many products of each grid alone")
    args = parser.parse_args()
    if args.out is None and not args.compile_only:
        parser.error("--out is needed, but for --compile-only")
    return args


def main() -> None:
    """Searches, or compiles alone."""
    args = _arguments()
    end = time.monotonic() + args.seconds - _RESERVE
    gpu = None if args.compile_only else GPU.get(0)
    arch = arches.get(args.arch) if gpu is None else gpu.arch
    fit = fit_grid(args.seed)
    judge = judge_grid(args.seed, fit)[: args.limit]
    every = unit_tasks(fit[: args.limit], judge, arch) if args.units else tasks(fit[: args.limit], judge)
    todo = [task for task in every if args.part in {task.part, "all"} and (task.exhaustive or not args.exhaustive)]
    with KernelCompiler(arch.target, args.workers) as compiler:
        if gpu is None:
            begin = time.monotonic()
            for task in todo:
                compiler.order(map(INNER.with_config, candidates(task, arch, args.seed)), task.problem.dtype)
            compiler.wait()
            print(f"{compiler.ordered} kernels for {arch.target} in {time.monotonic() - begin:.0f} s")
            return
        record = Record(args.out, args.seed, {**describe(gpu=True), "rounds": args.rounds})
        rules = Rules(rounds=args.rounds, deadline=end)
        with clean_clock(gpu) as clock:
            tools = Tools(gpu, clock, compiler, rules, args.seed)
            _search(tools, record, [task for task in todo if task.key not in record.done])


def _search(tools: Tools, record: Record, todo: list[Task]) -> None:
    """Goes through ``todo`` until the deadline; kernels are ordered some products ahead."""
    begin, end = time.monotonic(), tools.rules.deadline
    ready: list[tuple[Task, list[Config]]] = []
    left = iter(todo)
    done = 0
    while time.monotonic() < end:
        while len(ready) < _AHEAD and (task := next(left, None)) is not None:
            configs = candidates(task, tools.gpu.arch, tools.seed)
            tools.compiler.order(map(INNER.with_config, configs), task.problem.dtype)
            ready.append((task, configs))
        if not ready:
            break
        task, configs = ready.pop(0)
        line = search(tools, task, configs)
        record.add(line)
        done += 1
        print(_said(line, len(configs)), flush=True)
    print(
        f"{done} of {len(todo)} products in {time.monotonic() - begin:.0f} s, of which "
        f"{tools.compiler.waited:.0f} s waiting for {tools.compiler.ordered} kernels"
    )


def _said(line: dict[str, Any], count: int) -> str:
    p = line["problem"]
    seconds = [row[-2] for row in line["configs"]]
    best, chosen = min(seconds), seconds[0]
    verdict = "" if line["errors"]["chosen"]["ok"] else "  WRONG"
    how = f"{'all' if line['exhaustive'] else 'of'} {count}"
    return (
        f"{p['m']:3}x{p['n']:<3}x{p['k']:<10} {p['dtype']:8} {p['layout']:6} {how:8} best {best * 1e6:9.1f} us  "
        f"chosen/best {chosen / best:.3f}  {LIBRARY}/chosen {line[LIBRARY] / chosen:7.2f}{verdict}"
    )


if __name__ == "__main__":
    main()
