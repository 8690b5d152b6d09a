"""``matmill inner``: D = alpha * E @ F + beta * C for few outputs and a long k, from files of any length."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from matmill.cli.console import transferring
from matmill.cli.files import load
from matmill.cli.options import Subparsers, writable
from matmill.cli.product import add_arguments, finish, run_product
from matmill.dtypes import ALL, of_numpy
from matmill.errors import unknown_name
from matmill.problem import Gemm


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inner",
        help="multiply two .npy files with few outputs and a long k",
        description="OUT = alpha * E @ F + beta * C for .npy files with E (m, k), F (k, n) and m and n up to 128, or "
        f"E @ E transposed where F is left out. Elements are {', '.join(ALL)}. Inputs are memory-mapped and may be "
        "larger than the memory of GPU and host; the output appears whole or not at all.",
    )
    add = parser.add_argument
    add("e", metavar="E.npy", type=Path)
    add("f", metavar="F.npy", type=Path, nargs="?", help="left out: E transposed (a Gram matrix)")
    add(
        "--dtype",
        metavar="|".join(ALL),
        help="type of the elements, which the files must have; bfloat16 takes two bytes without a type, which is how "
        "NumPy writes it, and uint16",
    )
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Multiplies, writes the file, prints the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.ops import inner  # noqa: PLC0415 — other commands should not pay for its import

    writable(args.out, "--out")
    dtype = None
    if args.dtype is not None:
        dtype = ALL.get(args.dtype)
        if dtype is None:
            raise unknown_name("--dtype", args.dtype, ALL)

    def read(path: Path, argument: str) -> NDArray[Any]:
        return load(path, argument, dtype, wanted=" or ".join(ALL))

    e = read(args.e, "E")
    f = e.T if args.f is None else read(args.f, "F")
    c = None if args.c is None else read(args.c, "--c")
    with transferring() as progress:
        ran = run_product(args, c, partial(inner, e, f, progress=progress))
    return finish(args, ran, _problem(e, f, gram=args.f is None, has_c=ran.has_c), by_bytes=True)


def _problem(e: NDArray[Any], f: NDArray[Any], *, gram: bool, has_c: bool) -> Gemm:
    return Gemm(
        m=e.shape[0],
        n=f.shape[1],
        k=e.shape[1],
        dtype=of_numpy(e.dtype, "E"),
        gram=gram,
        has_c=has_c,
    )
