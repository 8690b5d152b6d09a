"""``matmill audit``: what a function that multiplies matrices computes, anybody's or matmill's."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from matmill.cli.console import show_json
from matmill.cli.options import Subparsers, add_precision, seconds, writable
from matmill.dtypes import ALL
from matmill.errors import ArgumentError
from matmill.settings import EXECUTORS, waiting_for_compiler


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "audit",
        help="what a function that multiplies matrices computes: anybody's, or matmill's",
        description="Look at a function of two matrices from outside: whether every term of k is there once, whether "
        "anything else is read or written, NaN and infinities, errors, the order of summation, and when bits are the "
        "same. Exits with 1 if the product is wrong.",
        epilog="PRODUCT is matmill, torch (torch.matmul and torch.addmm), numpy, or MODULE:FUNCTION, which may be in "
        "the current folder: a function of a and b, and where it has them of out, or of c and beta.",
    )
    add = parser.add_argument
    add("product", metavar="PRODUCT", help="matmill, torch, numpy, or MODULE:FUNCTION")
    add("--dtype", nargs="+", default=["float32"], metavar="TYPE", help=f"of {', '.join(ALL)} (default: float32)")
    add("--device", metavar="DEVICE", help="pass torch's tensors on it; default: NumPy's arrays, for torch the GPU")
    add("--on", choices=EXECUTORS, help="of matmill: what runs it (default: a GPU if there is one, else the emulator)")
    add_precision(parser)
    add("--out-dtype", metavar="TYPE", help="of matmill: the element type of results, float32 for 16-bit elements")
    add("--require", nargs="+", default=[], metavar="NAME", help="properties without which the product is wrong, too")
    add("--seconds", type=seconds, default=60.0, help="for each type; what they do not suffice for is not asked")
    add("--markdown", metavar="FILE", type=Path, help="write the report into FILE")
    add("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Audit a product for each type, and print the reports."""
    from matmill.testing import audit  # noqa: PLC0415 — other commands should not pay for its import

    if args.markdown is not None:
        writable(args.markdown, "--markdown")
    product, device = _product(args)
    given: dict[str, Any] = {"device": device, "require": args.require, "seconds": args.seconds, "name": args.product}
    with waiting_for_compiler():  # what stands in for a kernel that is being compiled is not what is asked about
        audits = [audit(product, dtype=dtype, **given) for dtype in args.dtype]
    if args.markdown is not None:
        args.markdown.write_text("\n".join(one.markdown() for one in audits), encoding="utf-8")
    if args.json:
        show_json({"audits": [one.as_dict() for one in audits]})
    else:
        sys.stdout.write("\n\n".join(map(str, audits)) + "\n")
    return 0 if all(audits) else 1


def _product(args: argparse.Namespace) -> tuple[Callable[..., Any], str]:
    """Return the function, and the device of the tensors that it gets, or nothing for NumPy's arrays."""
    device = args.device or ""
    if args.product == "matmill":
        return _matmill(args), device
    if args.on or args.precision or args.batch_invariant or args.out_dtype:
        raise ArgumentError(
            argument="--on, --precision, --batch-invariant, --out-dtype",
            got=args.product,
            wanted="them with matmill",
            fix="Omit them.",
        )
    if args.product == "numpy":
        return np.matmul, device
    if args.product == "torch":
        if find_spec("torch") is None:
            raise ArgumentError(argument="PRODUCT", got="torch", wanted="an installed torch", fix="Install it.")
        torch: Any = importlib.import_module("torch")
        return _by_torch, device or ("cuda" if torch.cuda.is_available() else "cpu")
    return _named(args.product), device


def _matmill(args: argparse.Namespace) -> Callable[..., Any]:
    from matmill.ops import matmul  # noqa: PLC0415 — see run
    from matmill.runtime import gpu  # noqa: PLC0415 — see run

    on = args.on or ("gpu" if gpu.unavailable() is None else "emulator")
    # The executor of tensors on a GPU is that GPU.
    executor = None if (args.device or "").startswith("cuda") else on
    summed = {"precision": args.precision, "batch_invariant": args.batch_invariant}
    return partial(matmul, executor=executor, **summed, out_dtype=args.out_dtype)


def _by_torch(a: Any, b: Any, *, out: Any = None, c: Any = None, beta: float = 0.0) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.matmul(a, b, out=out) if c is None else torch.addmm(c, a, b, beta=beta)


def _named(text: str) -> Callable[..., Any]:
    """Return the function that ``MODULE:FUNCTION`` names."""
    module, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(
            argument="PRODUCT",
            got=f"{text!r} ({error})",
            wanted="matmill, torch, numpy, or MODULE:FUNCTION",
            fix="For instance numpy:dot, or mine:multiply for multiply of mine.py in this folder.",
        ) from error
    if not callable(function):
        raise ArgumentError(argument="PRODUCT", got=text, wanted="a function", fix="Name one of two matrices.")
    result: Callable[..., Any] = function
    return result
