"""``matmill tune``: the configurations of one product, timed on a GPU; later calls run the winner."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from matmill.cli.console import show_json
from matmill.cli.options import Subparsers, add_precision, size
from matmill.dtypes import ALL, long_name
from matmill.errors import ArgumentError

LAYOUTS = ("nn", "nt", "tn", "tt")


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tune",
        help="time the configurations of a product and keep the winner",
        description="Time the best configurations for an MxK times KxN product of random elements on GPU 0. Later "
        "calls of matmul with such a product run the winner.",
    )
    parser.add_argument("sizes", metavar="M N K", type=size, nargs="*", help="rows, columns, and the length of sums")
    parser.add_argument("--dtype", default="float32", metavar="|".join(ALL), help="element type (default: float32)")
    add_precision(parser)
    parser.add_argument("--layout", default="nn", choices=LAYOUTS, help="of A and B: n by rows, t by columns")
    parser.add_argument("--show", action="store_true", help="print what was kept for GPU 0")
    parser.add_argument("--clear", action="store_true", help="forget what was kept for GPU 0")
    parser.add_argument("--candidates", type=size, default=4, metavar="N", help="how many to time (default: 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Tune and print the table. Raises :class:`~matmill.errors.MatmillError`."""
    if args.show or args.clear:
        return _kept(clear=args.clear)
    if len(args.sizes) != 3:
        raise ArgumentError(
            argument="M N K", got=f"{len(args.sizes)} sizes", wanted="three sizes", fix="Or pass --show or --clear."
        )
    from matmill.tuning import tune  # noqa: PLC0415 — other commands should not pay for its import

    dtype = ALL[long_name(args.dtype, ALL)].numpy
    m, n, k = args.sizes
    a, b = (
        _random(rows, columns, dtype, order) for rows, columns, order in zip((m, k), (k, n), args.layout, strict=True)
    )
    tuned = tune(a, b, precision=args.precision, batch_invariant=args.batch_invariant, candidates=args.candidates)
    if args.json:
        rows = [asdict(row) for row in tuned.rows]
        show_json({"problem": str(tuned.problem), "winner": tuned.winner, "kept": tuned.kept, "rows": rows})
    else:
        sys.stdout.write(f"{tuned}\n")
    return 0


def _random(rows: int, columns: int, dtype: Any, order: str) -> Any:
    """Return random elements, row by row (n) or column by column (t)."""
    random = np.random.default_rng()
    if order == "n":
        return random.uniform(-1, 1, (rows, columns)).astype(dtype)
    return random.uniform(-1, 1, (columns, rows)).astype(dtype).T


def _kept(*, clear: bool) -> int:
    """Print the rows that are kept for GPU 0, or forget them."""
    from matmill.dispatch.measured import decisions  # noqa: PLC0415 — see run
    from matmill.runtime.gpu import GPU  # noqa: PLC0415 — see run

    rows = decisions(GPU.get(0))
    if clear:
        sys.stdout.write(f"{rows.clear()} forgotten.\n")
        return 0
    lines = [f"{key}: {row['entry']} {row['config']}" for key, row in rows.items() if row]
    sys.stdout.write("\n".join([f"{len(lines)} kept in {rows.path or 'memory'}.", *lines]) + "\n")
    return 0
