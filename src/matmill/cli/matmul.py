"""``matmill matmul``: the product of two ``.npy`` files, with its time, rate and bound."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from matmill.cli.options import Subparsers, add_precision
from matmill.cli.product import add_arguments, finish, reader, run_product
from matmill.dtypes import PRODUCTS, of_numpy, result_type
from matmill.problem import Gemm


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "matmul",
        help="multiply two .npy files",
        description=f"OUT = alpha * A @ B + beta * C for .npy files of {', '.join(PRODUCTS)}. Inputs are mapped; "
        "the output appears whole or not at all.",
    )
    parser.add_argument("a", metavar="A.npy", type=Path)
    parser.add_argument("b", metavar="B.npy", type=Path)
    add_precision(parser)
    add_arguments(parser, PRODUCTS)


def run(args: argparse.Namespace) -> int:
    """Multiply, write the file, print the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.ops import matmul  # noqa: PLC0415 — other commands should not pay for its import

    read = reader(args, PRODUCTS)
    a, b = read(args.a, "A"), read(args.b, "B")
    c = None if args.c is None else read(args.c, "--c")
    summed = {"precision": args.precision, "batch_invariant": args.batch_invariant}
    ran = run_product(args, (a, b), c, partial(matmul, a, b, **summed))
    problem = _problem(a, b, ran.product, has_c=ran.has_c)
    return finish(args, ran, replace(problem, precision=args.precision or "default"))


def _problem(a: NDArray[Any], b: NDArray[Any], product: NDArray[Any], *, has_c: bool) -> Gemm:
    dtype = of_numpy(a.dtype, "A", PRODUCTS)
    m = a.shape[-2] if a.ndim > 1 else 1
    n = b.shape[-1] if b.ndim > 1 else 1
    matrix_axes = (a.ndim > 1) + (b.ndim > 1)
    batch = math.prod(product.shape[: product.ndim - matrix_axes])
    return Gemm(
        m=m,
        n=n,
        k=a.shape[-1],
        dtype=dtype,
        out_dtype=None if (result := result_type(None, dtype)) is dtype else result,
        batch=batch,
        a_batch=0 if math.prod(a.shape[:-2]) == 1 else None,
        b_batch=0 if math.prod(b.shape[:-2]) == 1 else None,
        has_c=has_c,
    )
