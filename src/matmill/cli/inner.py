"""``matmill inner``: D = alpha * E @ F + beta * C for few outputs and a long k, from files of any length."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from matmill.cli.console import transferring
from matmill.cli.options import Subparsers
from matmill.cli.product import add_arguments, finish, reader, run_product
from matmill.dtypes import REAL_AND_COMPLEX, of_numpy
from matmill.problem import Gemm


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inner",
        help="multiply two .npy files with few outputs and a long k",
        description="OUT = alpha * E @ F + beta * C for .npy files with E (m, k), F (k, n) and m and n up to 128, or "
        f"E times its own transpose where F is left out. Elements are {', '.join(REAL_AND_COMPLEX)}. Inputs are "
        "memory-mapped; real ones may be larger than the memory of GPU and host. The output appears whole or not at "
        "all.",
        epilog="Samples of 8 features, a sample per row: `matmill inner X.npy --transpose --out GRAM.npy` makes the "
        "8x8 matrix X.T @ X, and `matmill inner X.npy Y.npy --transpose --out D.npy` makes X.T @ Y.",
    )
    add = parser.add_argument
    add("e", metavar="E.npy", type=Path)
    add("f", metavar="F.npy", type=Path, nargs="?", help="left out: E's transpose, which makes a Gram matrix")
    add("--transpose", action="store_true", help="E.npy is stored as (k, m), a sample per row: its transpose is E")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Multiply, write the file, print the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.ops import inner  # noqa: PLC0415 — other commands should not pay for its import

    read = reader(args)
    stored = read(args.e, "E")
    e = stored.T if args.transpose else stored
    f = e.T if args.f is None else read(args.f, "F")
    c = None if args.c is None else read(args.c, "--c")
    with transferring() as progress:
        ran = run_product(args, (e, f), c, partial(inner, e, f, progress=progress))
    return finish(args, ran, _problem(e, f, gram=args.f is None, has_c=ran.has_c), by_bytes=True)


def _problem(e: NDArray[Any], f: NDArray[Any], *, gram: bool, has_c: bool) -> Gemm:
    return Gemm(
        m=e.shape[0],
        n=f.shape[1],
        k=e.shape[1],
        dtype=of_numpy(e.dtype, "E", REAL_AND_COMPLEX),
        gram=gram,
        has_c=has_c,
    )
