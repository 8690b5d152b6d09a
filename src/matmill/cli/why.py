"""``matmill why``: the kernel and configuration that would run a call, the alternatives, and faster calls.

Needs no GPU and no arrays: shapes are enough. ``analysis/explain.py`` computes the answers, ``why_report.py`` formats
them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from matmill import arch as arches
from matmill.analysis.explain import explain
from matmill.choose import fit_batches, stages_seconds
from matmill.cli.console import output, show, show_json
from matmill.cli.options import Subparsers, add_precision, size
from matmill.cli.shapes import factors, operand, packed, product_stages, transposed
from matmill.cli.why_report import in_parts, record, report
from matmill.dispatch.gemm import checked_options
from matmill.dtypes import ALL, PRODUCTS, TRANSPOSES, DType, long_name
from matmill.errors import ArgumentError, unknown_name
from matmill.lowering import SubProblem, lower_transpose, transpose_shape


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "why",
        help="which kernel would run a call, with which constants, and why",
        description="Show the least time that a call can take, the kernel and configuration that would run it, what "
        "the cost models predict for it and for the next best ones, and what would be faster. Needs no GPU and no "
        "arrays: shapes are enough.",
        epilog="Shapes: 4096x4096, 64x1000x17 with a batch, 5e7x3. A T at the end says that the last two dimensions "
        "are a transposed view, as of x.T: 3x5e7T is stored as 5e7x3 is.",
    )
    add = parser.add_argument
    add("operation", help=f"one of {', '.join(_OPERATIONS)}")
    add("shapes", nargs="+", metavar="SHAPE", help="of a and b, or of x (and y, which is x's transposed by default)")
    add("--dtype", default="float32", metavar="|".join(PRODUCTS), help="element type (default: float32)")
    add("--arch", default=arches.DEFAULT, help=f"for which GPU (default: {arches.DEFAULT})")
    add("--gram", action="store_true", help="b is a's transpose, in the same memory; name a's shape alone")
    add_precision(parser)
    add("--out-dtype", metavar="TYPE", help="element type of the result, float32 for 16-bit factors")
    add("--top", type=size, default=0, metavar="N", help="list the best N configurations as well")
    add("--json", action="store_true", help="print one JSON document, with all configurations")


def run(args: argparse.Namespace) -> int:
    """Show the choices behind the call that the arguments describe."""
    arch = arches.get(args.arch, "--arch")
    if args.operation not in _OPERATIONS:
        raise unknown_name("operation", args.operation, _OPERATIONS)
    real = {name: dtype for name, dtype in PRODUCTS.items() if dtype.part is None}
    types = {"matmul": real, "inner": ALL}.get(args.operation, TRANSPOSES)
    dtype = types[long_name(args.dtype, types)]
    stages = fit_batches(_OPERATIONS[args.operation](args, dtype), arch)
    explanations = [(stage, explain(stage.problem, arch)) for stage in stages]
    if args.json:
        records = [record(explanation, len(stage.offsets)) for stage, explanation in explanations]
        seconds = stages_seconds(stages, arch)
        show_json({"operation": args.operation, "arch": arch.name, "seconds": seconds, "stages": records})
        return 0
    if sum(len(stage.offsets) for stage in stages) > 1:
        show(in_parts(stages, stages_seconds(stages, arch), output().width))
    for stage, explanation in explanations:
        show(report(explanation, len(stage.offsets), args.top, output().width))
    if not explanations:
        show([Text("Nothing to run: the result is empty.")])
    return 0


def _product(args: argparse.Namespace, dtype: DType) -> tuple[SubProblem[Any], ...]:
    shapes, gram = args.shapes, args.gram
    options = checked_options(None, args.out_dtype, args.precision, dtype, batch_invariant=args.batch_invariant)
    _expect(shapes, 1 if gram else 2, "both factors, or with --gram the first alone")
    if not gram:
        first, second = shapes
        return product_stages(*factors(first, second, dtype), options)
    a = operand(shapes[0], dtype, 1)
    return product_stages(a, transposed(a), options)


def _sum(args: argparse.Namespace, dtype: DType) -> tuple[SubProblem[Any], ...]:
    shapes = args.shapes
    _no_product_options(args)
    if len(shapes) > 2:
        _expect(shapes, 2, "transpose_add's x and y")
    x = operand(shapes[0], dtype, 1)
    own = packed(transpose_shape(x.shape), dtype, 2)
    y = operand(shapes[1], dtype, 2) if len(shapes) > 1 else own
    return lower_transpose(x, y, packed(transpose_shape(x.shape, y.shape), dtype, 4))


def _transpose(args: argparse.Namespace, dtype: DType) -> tuple[SubProblem[Any], ...]:
    shapes = args.shapes
    _no_product_options(args)
    _expect(shapes, 1, "transpose's x")
    x = operand(shapes[0], dtype, 1)
    return lower_transpose(x, None, packed(transpose_shape(x.shape), dtype, 4), alpha=1.0)


_OPERATIONS: dict[str, Callable[..., tuple[SubProblem[Any], ...]]] = {
    "matmul": _product,
    "inner": _product,
    "transpose_add": _sum,
    "transpose": _transpose,
}


def _expect(shapes: Sequence[str], count: int, whose: str) -> None:
    if len(shapes) != count:
        raise ArgumentError(
            argument="SHAPE",
            got=f"{len(shapes)} of them: {' '.join(shapes)}",
            wanted=f"{count}: {whose}",
            fix="See `matmill why --help`.",
        )


def _no_product_options(args: argparse.Namespace) -> None:
    given = {
        "--gram": args.gram or None,
        "--precision": args.precision,
        "--batch-invariant": args.batch_invariant or None,
        "--out-dtype": args.out_dtype,
    }
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                argument=name,
                got="a sum",
                wanted="it with matmul or inner",
                fix="Omit it: only products have factors, which it is about.",
            )
