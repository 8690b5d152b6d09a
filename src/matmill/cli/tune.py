"""``matmill tune``: the configurations of one product, timed on a GPU; later calls run the winner."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

import numpy as np

from matmill.cli.console import show_json
from matmill.cli.options import Subparsers, size
from matmill.dtypes import ALL, long_name


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tune",
        help="time the configurations of a product and keep the winner",
        description="Time the best configurations for an MxK times KxN product of random elements on GPU 0. Later "
        "calls of matmul with such a product run the winner.",
    )
    for name in ("m", "n", "k"):
        parser.add_argument(name, metavar=name.upper(), type=size)
    parser.add_argument("--dtype", default="float32", metavar="|".join(ALL), help="element type (default: float32)")
    parser.add_argument("--candidates", type=size, default=4, metavar="N", help="how many to time (default: 4)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Tune and print the table. Raises :class:`~matmill.errors.MatmillError`."""
    from matmill.tuning import tune  # noqa: PLC0415 — other commands should not pay for its import

    dtype = ALL[long_name(args.dtype, ALL)].numpy
    random = np.random.default_rng()
    a, b = (random.uniform(-1, 1, extents).astype(dtype) for extents in ((args.m, args.k), (args.k, args.n)))
    tuned = tune(a, b, candidates=args.candidates)
    if args.json:
        rows = [asdict(row) for row in tuned.rows]
        show_json({"problem": str(tuned.problem), "winner": tuned.winner, "kept": tuned.kept, "rows": rows})
    else:
        sys.stdout.write(f"{tuned}\n")
    return 0
