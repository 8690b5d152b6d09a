"""Records ladder runs as JSON under ``benchmarks/results/``, from which the documentation's figures are made.

Without a GPU: ``python benchmarks/ladder.py`` records the emulated SGEMM ladder at 256, counters of every source line
included. On one: ``python benchmarks/ladder.py --gpu 1024 2048 4096 8192`` records the measured ladder at each size,
and ``--memory 1024 8192`` the memory ladder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matmill.arch import get
from matmill.bench.ladder import emulate
from matmill.bench.measure import measure
from matmill.bench.results import Outcome
from matmill.bench.selection import pick
from matmill.bench.transfers import measure_transfers
from matmill.ladder.memory import MEMORY
from matmill.ladder.sgemm import SGEMM
from matmill.problem import Gemm

RESULTS = Path(__file__).resolve().parent / "results"
EMULATED_SIZE = 256
#: A recorded run can be repeated: same matrices, same order of turns.
SEED = 20261120


def main() -> None:
    """Runs what the arguments ask for and writes one file per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, nargs="+", default=[], metavar="N", help="measure the SGEMM ladder at N")
    parser.add_argument("--memory", type=int, nargs="+", default=[], metavar="N", help="measure the memory ladder at N")
    parser.add_argument("--transfers", metavar="NAMES", help="rungs of the memory ladder to measure (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for n in args.gpu:
        record(args.out, measure("sgemm", SGEMM, square(n), None, seed=SEED))
    for n in args.memory:
        record(args.out, measure_transfers(pick(MEMORY, args.transfers), square(n), None, seed=SEED))
    if not args.gpu and not args.memory:
        record(args.out, emulate("sgemm", SGEMM, square(EMULATED_SIZE), get("h200"), seed=SEED, by_line=True))


def square(n: int) -> Gemm:
    """The product of two n by n matrices."""
    return Gemm(m=n, n=n, k=n)


def record(folder: Path, outcome: Outcome) -> None:
    """Writes ``outcome`` as ``<ladder>_<arch or emulated>_<n>.json``."""
    where = "emulated" if outcome.on == "emulator" else outcome.arch.name
    path = folder / f"{outcome.ladder}_{where}_{outcome.problem.n}.json"
    path.write_text(pretty(outcome.as_dict()) + "\n", encoding="utf-8")
    wrong = [row.rung for row in outcome.rows if row.ok is False]
    print(f"{path.name}: {len(outcome.rows)} rows" + (f", WRONG: {', '.join(wrong)}" if wrong else ""))


def pretty(record: dict[str, Any]) -> str:
    """JSON with one line per row, baseline and source line, so that a change shows as a small difference."""
    long: dict[str, Sequence[Any]] = {key: record[key] for key in ("rows", "baselines")}
    short = {key: value for key, value in record.items() if key not in long}
    parts = [f'"{key}": {json.dumps(value)}' for key, value in short.items()]
    for key, items in long.items():
        lines = ",\n  ".join(json.dumps(item) for item in items)
        parts.append(f'"{key}": [\n  {lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    main()
