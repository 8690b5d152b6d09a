"""Records ladder runs as JSON under ``benchmarks/results/``, from which the documentation's figures are made.

Without a GPU: ``python benchmarks/ladder.py`` records the emulated SGEMM ladder at 256, counters of every source line
included, and the emulated hgemm, inner and transpose_add ladders at their defaults. On one: ``python
benchmarks/ladder.py --gpu 1024 2048 4096 8192`` records the measured SGEMM ladder at each size, ``--hgemm float16
bfloat16`` the hgemm ladder in these types at sizes from 512 to 16384, ``--memory
1024 8192`` the memory ladder, ``--inner MTXA MTX1 --dtype float32 --layout row`` the inner ladder at cases of its
paper, and ``--transpose-add bfloat16 float32`` the transpose_add ladder at the article's shape in these types.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from matmill.arch import get
from matmill.dtypes import ALL, BF16, ELEMENTWISE, F32
from matmill.ladders.hgemm import subject as hgemm
from matmill.ladders.hgemm.subject import HALVES, half_product
from matmill.ladders.inner.launches import for_emulator
from matmill.ladders.inner.subject import EMULATED_K, LAYOUTS, case, inner_product, layout_of
from matmill.ladders.memory.rungs import MEMORY
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.emulated import emulate
from matmill.ladders.runner.measured import measure
from matmill.ladders.runner.measured_transfers import measure_transfers
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.selection import pick
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.ladders.transpose_add.subject import ARTICLE, EMULATED, transpose_add_problem
from matmill.problem import Geam, Gemm

RESULTS = Path(__file__).resolve().parent / "results"
EMULATED_SIZE = 256
#: m = n = k that emulated rungs choose their constants for, as they would on a GPU.
LARGE = 4096
#: k of the emulated hgemm ladder whose pipelines fill.
PIPELINES_K = 1024
#: m = n = k of the hgemm ladder: those of a sweep, and one that no tile divides.
SIZES = (512, 1000, 1024, 2048, 4096, 8192, 16384)
#: A recorded run can be repeated: same matrices, same order of runs.
SEED = 20261120


def main() -> None:
    """Run what the arguments ask for and write one file per run."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if any((args.gpu, args.hgemm, args.memory, args.inner, args.transpose_add)):
        record_measured(args)
    else:
        for name, make in EMULATED_LADDERS.items():
            if args.emulate in {name, "all"}:
                for outcome in make():
                    record(args.out, outcome)


def arguments() -> argparse.Namespace:
    """Return the command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gpu", type=int, nargs="+", default=[], metavar="N", help="measure the SGEMM ladder at N")
    add(
        "--hgemm",
        nargs="+",
        default=[],
        choices=HALVES,
        metavar="DTYPE",
        help="measure the hgemm ladder in these types",
    )
    add("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help=f"of --hgemm (default: {SIZES})")
    add("--memory", type=int, nargs="+", default=[], metavar="N", help="measure the memory ladder at N")
    add("--transfers", metavar="NAMES", help="rungs of the memory ladder to measure (default: all)")
    add("--inner", nargs="+", default=[], metavar="CASE", help="measure the inner ladder at cases")
    add("--dtype", default="float32", choices=ALL, help="element type of --inner (default: float32)")
    add("--layout", default="row", choices=LAYOUTS, help="layout of F of --inner (default: row)")
    add(
        "--transpose-add",
        nargs="+",
        default=[],
        choices=ELEMENTWISE,
        metavar="DTYPE",
        help="measure the transpose_add ladder at the article's shape in these types",
    )
    add(
        "--emulate",
        choices=(*EMULATED_LADDERS, "all"),
        default="all",
        help="what is emulated where nothing is measured",
    )
    add("--out", type=Path, default=RESULTS, help="folder to write to")
    return parser.parse_args()


def record_measured(args: argparse.Namespace) -> None:
    """Run on the GPU."""
    for n in args.gpu:
        record(args.out, measure("sgemm", SGEMM, square(n), None, seed=SEED))
    for name, n in product(args.hgemm, args.sizes):
        asked = half_product(n, n, n, HALVES[name])
        record(args.out, measure("hgemm", LADDERS["hgemm"].rows, asked, None, seed=SEED))
    for n in args.memory:
        record(args.out, measure_transfers(pick(MEMORY, args.transfers), square(n), None, seed=SEED))
    for name in args.inner:
        long = inner_product(*case(name), ALL[args.dtype], args.layout)
        record(args.out, measure("inner", LADDERS["inner"].rows, long, None, seed=SEED))
    for name in args.transpose_add:
        problem = transpose_add_problem(*ARTICLE, ELEMENTWISE[name])
        record(args.out, measure("transpose_add", LADDERS["transpose_add"].rows, problem, None, seed=SEED))


def emulated_sgemm() -> Iterator[Outcome]:
    """Yield the SGEMM ladder with the counters of every source line."""
    sizes, large = square(EMULATED_SIZE), square(LARGE)
    yield emulate("sgemm", SGEMM, sizes, get("h200"), seed=SEED, by_line=True, bounds=True, like=large)


def emulated_halves() -> Iterator[Outcome]:
    """Yield the hgemm ladder and the production kernel in both element types."""
    for dtype in HALVES.values():
        sizes, large = half_product(*hgemm.EMULATED, dtype), half_product(LARGE, LARGE, LARGE, dtype)
        yield emulate("hgemm", LADDERS["hgemm"].rows, sizes, get("h200"), seed=SEED, bounds=True, like=large)


def emulated_pipelines() -> Iterator[Outcome]:
    """Yield the hgemm ladder with so many steps of k that every pipeline fills."""
    sizes, large = half_product(256, 256, PIPELINES_K), half_product(LARGE, LARGE, LARGE)
    yield emulate("hgemm", LADDERS["hgemm"].rows, sizes, get("h200"), seed=SEED, like=large)


def emulated_transpose_add() -> Iterator[Outcome]:
    """Yield the transpose_add ladder and the production kernel in bfloat16, as the article has it, and in float32."""
    for dtype in (BF16, F32):
        asked = transpose_add_problem(*EMULATED, dtype)
        yield emulate("transpose_add", LADDERS["transpose_add"].rows, asked, get("h200"), seed=SEED)


def emulated_inner() -> Iterator[Outcome]:
    """Yield the inner ladder and the production kernel, as ``matmill ladder inner --on emulator`` runs them."""
    problem = inner_product(3, 3, EMULATED_K)
    rungs, text = for_emulator(LADDERS["inner"].rows)
    result = emulate("inner", rungs, problem, get("h200"), seed=SEED)
    yield replace(result, notes=(*result.notes, text))


EMULATED_LADDERS: dict[str, Callable[[], Iterator[Outcome]]] = {
    "sgemm": emulated_sgemm,
    "pipelines": emulated_pipelines,
    "hgemm": emulated_halves,
    "inner": emulated_inner,
    "transpose_add": emulated_transpose_add,
}


def square(n: int) -> Gemm:
    """Return the product of two n by n matrices."""
    return Gemm(m=n, n=n, k=n)


def record(folder: Path, outcome: Outcome) -> None:
    """Write ``outcome`` as ``<ladder>_<arch or emulated>_<problem>.json``."""
    where = "emulated" if outcome.on == "emulator" else outcome.arch.name
    path = folder / f"{outcome.ladder}_{where}_{name_of(outcome)}.json"
    path.write_text(pretty(outcome.as_dict()) + "\n", encoding="utf-8")
    wrong = [row.rung for row in outcome.rows if row.ok is False]
    print(f"{path.name}: {len(outcome.rows)} rows" + (f", WRONG: {', '.join(wrong)}" if wrong else ""))


def name_of(outcome: Outcome) -> str:
    """Name a record's sizes: N of a square, k of the inner ladder's, x's sizes, with what else tells them apart."""
    p = outcome.problem
    if isinstance(p, Geam):
        return f"{p.n}x{p.m}_{p.dtype.name}"
    if outcome.ladder == "hgemm":
        sizes = str(p.n) if p.m == p.n == p.k else f"{p.m}x{p.n}x{p.k}"
        return f"{sizes}_{p.dtype.name}"
    if outcome.ladder != "inner":
        return str(p.n)
    return str(p.k) if outcome.on == "emulator" else f"{p.m}x{p.n}x{p.k}_{p.dtype.name}_{layout_of(p)}"


def pretty(record: dict[str, Any]) -> str:
    """Return JSON with one line per row, baseline and source line, so that a change shows as a small difference."""
    long: dict[str, Sequence[Any]] = {key: record[key] for key in ("rows", "baselines")}
    short = {key: value for key, value in record.items() if key not in long}
    parts = [f'"{key}": {json.dumps(value)}' for key, value in short.items()]
    for key, items in long.items():
        lines = ",\n  ".join(json.dumps(item) for item in items)
        parts.append(f'"{key}": [\n  {lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    main()
