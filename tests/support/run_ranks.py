"""Run cases of groups, DTensors and FSDP on several ranks: ``PYTHONPATH=src:tests python tests/support/run_ranks.py``.

Prints a row for each case that failed, and writes all rows as JSON. A rank that ends in mid-run has a group of its own,
after all other cases. ``tests/distributed`` and ``benchmarks/ranks.py`` start it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch

from support import dtensor_cases, fsdp_cases, group_cases
from support.ranks import SHORT_TIMEOUT_S, run


def main() -> int:
    """Return 1 where a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes, on as many GPUs with nccl (default: 2)")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"), help="default: gloo")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which ranks are killed (default: 120)")
    parser.add_argument("--out", type=Path, help="write all rows to this file")
    args = parser.parse_args()
    if args.backend == "gloo":
        # What torch.compile imports takes seconds: once here, not once in every rank. It may touch a GPU. The last of
        # it is imported for gradients, which must not be computed here: their threads do not survive a fork.
        torch.compile(torch.neg, backend="aot_eager")(torch.ones(1))
        import_module("torch._inductor.pattern_matcher")
    rows = []
    for cases, limit, ends in (
        ((*group_cases.CASES, *dtensor_cases.CASES, *fsdp_cases.CASES), args.limit, None),
        ((group_cases.a_rank_that_ends,), 4 * SHORT_TIMEOUT_S, args.ranks - 1),
    ):
        with tempfile.TemporaryDirectory() as folder:
            rows += run(cases, world=args.ranks, backend=args.backend, folder=Path(folder), limit=limit, ends=ends)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    failed = [row for row in rows if row["error"]]
    for row in failed:
        sys.stdout.write(f"{row['case']} on rank {row['rank']}:\n{row['error']}\n")
    sys.stdout.write(f"{len(rows) - len(failed)} of {len(rows)} rows are right\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
