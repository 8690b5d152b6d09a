"""Times every configuration of the transpose+add kernels on a grid of sums: what their cost model is fitted on.

    python benchmarks/transpose_add_search.py --out benchmarks/results/transpose_add_search_h200.jsonl --seconds 300

Every element type and alignment at a few sizes, the article's sum first, or with ``--slim`` sums with one short side
and batches of small matrices, which belong in a record of their own; each configuration is checked to the bit.
Needs a GPU and torch. Stops by itself when ``--seconds`` are over, with all that was measured in the file; the same
command then goes on where it stopped. Kernels are compiled by other processes. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from matmill.bench.clean_clock import clean_clock
from matmill.bench.compiler import KernelCompiler
from matmill.bench.contest import Rules
from matmill.bench.environment import describe
from matmill.bench.inner_compare import needs_torch
from matmill.bench.sum_search import Record, Tools, grid, search, slim_grid
from matmill.bench.sum_shapes import CASE, Shape
from matmill.bench.timing.device_copy import Copying
from matmill.runtime.gpu import GPU

#: The longest that the last sum may take after the time is over.
_RESERVE = 10.0


def main() -> None:
    """Searches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record, to which lines are appended")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=300.0, help="when to stop (default: 300)")
    parser.add_argument("--rounds", type=int, default=5, help="of whatever is not far from the best (default: 5)")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that compile")
    parser.add_argument("--slim", action="store_true", help="sums that are made by portions")
    parser.add_argument("--limit", type=int, help="take this many sums alone")
    args = parser.parse_args()
    needs_torch()
    gpu = GPU.get(0)
    end = time.monotonic() + args.seconds - _RESERVE
    record = Record(args.out, args.seed, {**describe(gpu=True), "rounds": args.rounds})
    todo = list(record.left((slim_grid() if args.slim else grid())[: args.limit]))
    begin, done, wrong = time.monotonic(), 0, 0
    with (
        KernelCompiler(gpu.arch.target, args.workers) as compiler,
        clean_clock(gpu) as clock,
        Copying(gpu, CASE.nbytes) as copying,
    ):
        tools = Tools(gpu, clock, compiler, copying, Rules(rounds=args.rounds, deadline=end), args.seed)
        for shape in todo:
            if time.monotonic() > end:
                break
            line = search(tools, shape)
            record.add(line)
            done += 1
            wrong += len(line["wrong"])
            print(_said(shape, line), flush=True)
    print(f"{done} of {len(todo)} sums in {time.monotonic() - begin:.0f} s, {wrong} wrong results")
    sys.exit(1 if wrong else 0)


def _said(shape: Shape, line: dict[str, Any]) -> str:
    """The best, the chosen beside it, and the best that does not shift."""
    rows = line["rows"]
    best = min(rows, key=lambda row: row["seconds"])
    share = line["bytes"] / best["seconds"] / line["copy_bytes_per_s"]
    sizes = (best["config"].get(name) for name in ("BR", "BC", "G", "M", "N", "THREADS"))
    tile = "x".join(str(size) for size in sizes if size is not None)
    plain = min((row["seconds"] for row in rows if not row["config"].get("SHIFTED", 0)), default=0.0)
    beside = f"  unshifted/best {plain / best['seconds']:.3f}" if plain else ""
    wrong = f"  WRONG: {'; '.join(line['wrong'])}" if line["wrong"] else ""
    return (
        f"{shape!s:24} {len(rows):3} configurations  best {best['seconds'] * 1e6:8.1f} us, {share:6.1%} of a copy, "
        f"{best['kernel']} {tile}  chosen/best {rows[0]['seconds'] / best['seconds']:.3f}{beside}{wrong}"
    )


if __name__ == "__main__":
    main()
