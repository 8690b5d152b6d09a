"""Records ladder runs as JSON under ``benchmarks/results/``, from which the documentation's figures are made.

Without a GPU: ``python benchmarks/ladder.py`` records the emulated SGEMM ladder at 256, counters of every source line
included, and the emulated inner and transpose_add ladders at their defaults. On one: ``python benchmarks/ladder.py
--gpu 1024 2048 4096 8192`` records the measured SGEMM ladder at each size, ``--memory 1024 8192`` the memory ladder,
``--inner MTXA MTX1 --dtype float32 --layout row`` the inner ladder at cases of its paper, and ``--transpose-add
bfloat16 float32`` the transpose_add ladder at the article's shape in these types.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matmill.arch import get
from matmill.bench.ladder import emulate
from matmill.bench.measure import measure
from matmill.bench.production import rows_of
from matmill.bench.products import EMULATED_K, LAYOUTS, case, inner_product, layout_of
from matmill.bench.results import Outcome
from matmill.bench.selection import for_emulator, pick
from matmill.bench.transfers import measure_transfers
from matmill.bench.transposed import ARTICLE, EMULATED, transposed_sum
from matmill.dtypes import ALL, BF16, ELEMENTWISE, F32
from matmill.ladder.memory import MEMORY
from matmill.ladder.sgemm import SGEMM
from matmill.problem import Geam, Gemm

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
    parser.add_argument("--inner", nargs="+", default=[], metavar="CASE", help="measure the inner ladder at cases")
    parser.add_argument("--dtype", default="float32", choices=ALL, help="element type of --inner (default: float32)")
    parser.add_argument("--layout", default="row", choices=LAYOUTS, help="layout of F of --inner (default: row)")
    parser.add_argument(
        "--transpose-add",
        nargs="+",
        default=[],
        choices=ELEMENTWISE,
        metavar="DTYPE",
        help="measure the transpose_add ladder at the article's shape in these types",
    )
    parser.add_argument(
        "--emulate",
        choices=("sgemm", "inner", "transpose_add", "all"),
        default="all",
        help="what is emulated where nothing is measured",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for n in args.gpu:
        record(args.out, measure("sgemm", SGEMM, square(n), None, seed=SEED))
    for n in args.memory:
        record(args.out, measure_transfers(pick(MEMORY, args.transfers), square(n), None, seed=SEED))
    for name in args.inner:
        product = inner_product(*case(name), ALL[args.dtype], args.layout)
        record(args.out, measure("inner", rows_of("inner"), product, None, seed=SEED))
    for name in args.transpose_add:
        problem = transposed_sum(*ARTICLE, ELEMENTWISE[name])
        record(args.out, measure("transpose_add", rows_of("transpose_add"), problem, None, seed=SEED))
    if not any((args.gpu, args.memory, args.inner, args.transpose_add)):
        if args.emulate in {"sgemm", "all"}:
            record(args.out, emulate("sgemm", SGEMM, square(EMULATED_SIZE), get("h200"), seed=SEED, by_line=True))
        if args.emulate in {"inner", "all"}:
            record(args.out, emulated_inner())
        if args.emulate in {"transpose_add", "all"}:
            for dtype in (BF16, F32):
                asked = transposed_sum(*EMULATED, dtype)
                rungs = rows_of("transpose_add")
                record(args.out, emulate("transpose_add", rungs, asked, get("h200"), seed=SEED))


def emulated_inner() -> Outcome:
    """The inner ladder and the production kernel, as ``matmill ladder inner --on emulator`` runs them."""
    problem = inner_product(3, 3, EMULATED_K)
    rungs, said = for_emulator(rows_of("inner"))
    found = emulate("inner", rungs, problem, get("h200"), seed=SEED)
    return replace(found, notes=(*found.notes, said))


def square(n: int) -> Gemm:
    """The product of two n by n matrices."""
    return Gemm(m=n, n=n, k=n)


def record(folder: Path, outcome: Outcome) -> None:
    """Writes ``outcome`` as ``<ladder>_<arch or emulated>_<problem>.json``."""
    where = "emulated" if outcome.on == "emulator" else outcome.arch.name
    path = folder / f"{outcome.ladder}_{where}_{name_of(outcome)}.json"
    path.write_text(pretty(outcome.as_dict()) + "\n", encoding="utf-8")
    wrong = [row.rung for row in outcome.rows if row.ok is False]
    print(f"{path.name}: {len(outcome.rows)} rows" + (f", WRONG: {', '.join(wrong)}" if wrong else ""))


def name_of(outcome: Outcome) -> str:
    """N of a square product; k of the inner ladder's, and x's sizes of a sum, with what else tells them apart."""
    p = outcome.problem
    if isinstance(p, Geam):
        return f"{p.n}x{p.m}_{p.dtype.name}"
    if outcome.ladder != "inner":
        return str(p.n)
    return str(p.k) if outcome.on == "emulator" else f"{p.m}x{p.n}x{p.k}_{p.dtype.name}_{layout_of(p)}"


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
