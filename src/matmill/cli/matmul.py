"""``matmill matmul``: the product of two ``.npy`` files, with its time, rate and bound."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from matmill import settings
from matmill.cli.files import load, save
from matmill.cli.options import Subparsers, writable
from matmill.cli.report import report, timed
from matmill.problem import Gemm


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "matmul",
        help="multiply two .npy files",
        description="OUT = alpha * A @ B + beta * C for .npy files of float32 or float64. Inputs are memory-mapped; "
        "the output appears whole or not at all.",
    )
    parser.add_argument("a", metavar="A.npy", type=Path)
    parser.add_argument("b", metavar="B.npy", type=Path)
    parser.add_argument("--out", metavar="OUT.npy", type=Path, required=True, help="where the product goes")
    parser.add_argument("--c", metavar="C.npy", type=Path, help="matrix to add, times beta")
    parser.add_argument("--alpha", type=float, default=1.0, help="factor of the product (default 1)")
    parser.add_argument("--beta", type=float, help="factor of C (default 1 with --c, else 0)")
    parser.add_argument("--executor", choices=settings.EXECUTORS, help="where to compute (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Multiplies, writes the file, prints the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.ops import matmul  # noqa: PLC0415 — other commands should not pay for its import

    writable(args.out, "--out")
    a, b = load(args.a, "A"), load(args.b, "B")
    c = None if args.c is None else load(args.c, "--c")
    beta = args.beta if args.beta is not None else float(c is not None)
    executor = args.executor or settings.default_executor()
    product, seconds = timed(lambda: matmul(a, b, c, alpha=args.alpha, beta=beta, executor=executor), executor)
    save(args.out, product)
    report(args, _problem(a, b, product, has_c=beta != 0), product, executor, seconds)
    return 0


def _problem(a: NDArray[Any], b: NDArray[Any], product: NDArray[Any], *, has_c: bool) -> Gemm:
    from matmill.dtypes import of_numpy  # noqa: PLC0415 — with ops

    m = a.shape[-2] if a.ndim > 1 else 1
    n = b.shape[-1] if b.ndim > 1 else 1
    matrix_axes = (a.ndim > 1) + (b.ndim > 1)
    batch = math.prod(product.shape[: product.ndim - matrix_axes])
    return Gemm(
        m=m,
        n=n,
        k=a.shape[-1],
        dtype=of_numpy(a.dtype, "A"),
        batch=batch,
        a_batch=0 if math.prod(a.shape[:-2]) == 1 else None,
        b_batch=0 if math.prod(b.shape[:-2]) == 1 else None,
        has_c=has_c,
    )
