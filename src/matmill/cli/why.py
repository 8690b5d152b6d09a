"""``matmill why``: which kernel and configuration would run a call, what else there was, and what the models say of it.

Needs no GPU and no arrays: shapes are enough.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill import arch as arches
from matmill.arch import Arch
from matmill.arrays import Operand
from matmill.arrays.operand import CPU, packed_strides
from matmill.bench import units
from matmill.choose import call_seconds, choose_from
from matmill.cli.console import show, show_json, table
from matmill.cli.options import Subparsers, size
from matmill.dtypes import ALL, ELEMENTWISE, DType
from matmill.errors import ArgumentError, unknown_name
from matmill.lowering import SubProblem, gemm_shape, lower_gemm, lower_transpose, transpose_shape
from matmill.registry import PRODUCTION, TRANSPOSE_ADD_KERNELS

_SHAPE = re.compile(r"[0-9.e+]+(?:x[0-9.e+]+)*T?")
_SHOWN = 8
#: Distance between the addresses of operands that do not exist; aligned as allocations are.
_APART = 2**44


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "why",
        help="which kernel would run a call, with which constants, and why",
        description="Show every kernel and configuration that a call could be run with, what the cost models predict "
        "for each, and which one is taken. Needs no GPU and no arrays: shapes are enough.",
        epilog="Shapes: 4096x4096, 64x1000x17 with a batch, 5e7x3. A T at the end says that the last two dimensions "
        "are a transposed view, as of x.T: 3x5e7T is stored as 5e7x3 is.",
    )
    add = parser.add_argument
    add("operation", help=f"one of {', '.join(_OPERATIONS)}")
    add("shapes", nargs="+", metavar="SHAPE", help="of a and b, or of x (and y, which is x's transposed by default)")
    add("--dtype", default="float32", metavar="|".join(ELEMENTWISE), help="element type (default: float32)")
    add("--arch", default=arches.DEFAULT, help=f"for which GPU (default: {arches.DEFAULT})")
    add("--gram", action="store_true", help="b is a's transpose, in the same memory; name a's shape alone")
    add("--top", type=size, default=_SHOWN, metavar="N", help=f"configurations to show (default: {_SHOWN})")
    add("--json", action="store_true", help="print one JSON document, with all configurations")


def run(args: argparse.Namespace) -> int:
    """Shows the choices behind the call that the arguments describe."""
    arch = arches.get(args.arch, "--arch")
    if args.operation not in _OPERATIONS:
        raise unknown_name("operation", args.operation, _OPERATIONS)
    if args.dtype not in ELEMENTWISE:
        raise unknown_name("--dtype", args.dtype, ELEMENTWISE)
    stages, candidates = _OPERATIONS[args.operation](args.shapes, ELEMENTWISE[args.dtype], gram=args.gram)
    found = [_stage(stage, candidates, arch) for stage in stages]
    if args.json:
        show_json({"operation": args.operation, "arch": arch.name, "stages": found})
    else:
        for stage in found:
            show(_report(stage, arch, args.top))
        if not found:
            show([Text("Nothing to run: the result is empty.")])
    return 0


def _product(shapes: Sequence[str], dtype: DType, *, gram: bool) -> tuple[tuple[SubProblem[Any], ...], Sequence[Any]]:
    if dtype.name not in ALL:
        raise unknown_name("--dtype", dtype.name, ALL)
    _expect(shapes, 1 if gram else 2, "both factors, or with --gram the first alone")
    a = _operand(shapes[0], dtype, 1)
    b = a._replace(shape=_swapped(a.shape), strides=_swapped(a.strides)) if gram else _operand(shapes[1], dtype, 2)
    return lower_gemm(a, b, None, _packed(gemm_shape(a.shape, b.shape), dtype, 4)), PRODUCTION


def _sum(shapes: Sequence[str], dtype: DType, *, gram: bool) -> tuple[tuple[SubProblem[Any], ...], Sequence[Any]]:
    _no_gram(gram=gram)
    if len(shapes) > 2:
        _expect(shapes, 2, "transpose_add's x and y")
    x = _operand(shapes[0], dtype, 1)
    own = _packed(transpose_shape(x.shape), dtype, 2)
    y = _operand(shapes[1], dtype, 2) if len(shapes) > 1 else own
    return lower_transpose(x, y, _packed(transpose_shape(x.shape, y.shape), dtype, 4)), TRANSPOSE_ADD_KERNELS


def _transpose(shapes: Sequence[str], dtype: DType, *, gram: bool) -> tuple[tuple[SubProblem[Any], ...], Sequence[Any]]:
    _no_gram(gram=gram)
    _expect(shapes, 1, "transpose's x")
    x = _operand(shapes[0], dtype, 1)
    return lower_transpose(x, None, _packed(transpose_shape(x.shape), dtype, 4), alpha=1.0), TRANSPOSE_ADD_KERNELS


_OPERATIONS: dict[str, Callable[..., tuple[tuple[SubProblem[Any], ...], Sequence[Any]]]] = {
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


def _no_gram(*, gram: bool) -> None:
    if gram:
        raise ArgumentError(
            argument="--gram",
            got="a sum",
            wanted="it with matmul or inner",
            fix="Omit it: only products have factors.",
        )


def _operand(text: str, dtype: DType, index: int) -> Operand:
    """An operand of a shape, at an address of its own."""
    if not _SHAPE.fullmatch(text):
        raise _no_shape(text)
    try:
        shape = tuple(size(part) for part in text.removesuffix("T").split("x"))
    except argparse.ArgumentTypeError:
        raise _no_shape(text) from None
    if not text.endswith("T"):
        return _packed(shape, dtype, index)
    if len(shape) < 2:
        raise _no_shape(text)
    below = _packed(_swapped(shape), dtype, index)
    return below._replace(shape=shape, strides=_swapped(below.strides))


def _no_shape(text: str) -> ArgumentError:
    return ArgumentError(
        argument="SHAPE",
        got=repr(text),
        wanted="extents with x between, for instance 4096x4096 or 3x5e7T",
        fix="A T at the end means a transposed view and takes two dimensions at least.",
    )


def _packed(shape: tuple[int, ...], dtype: DType, index: int) -> Operand:
    address = index * _APART
    return Operand(shape, packed_strides(shape), dtype, CPU, address, readonly=False, library="numpy", owner=None)


def _swapped(extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*extents[:-2], extents[-1], extents[-2])


def _stage(stage: SubProblem[Any], candidates: Sequence[Any], arch: Arch) -> dict[str, Any]:
    """What can run one stage, best first, and what was ruled out. Raises where nothing can."""
    problem = stage.problem
    chosen = choose_from(candidates, problem, arch).kernel
    rows, ruled_out = [], {}
    for entry in candidates:
        for config in entry.space(problem, arch):
            kernel = entry.kernel.with_config(config)
            reason = kernel.why_not(problem, arch)
            if reason is not None:
                ruled_out[f"{kernel.entry} ({config})"] = reason
                continue
            made = entry.explain(problem, config, arch)
            rows.append(
                {
                    "kernel": kernel.entry,
                    "config": dict((*config.constants, *config.launch)),
                    "seconds": made.seconds,
                    "call_seconds": call_seconds(kernel, problem, made.seconds),
                    "bound": made.bound,
                    "terms": _terms(made),
                    "workspace": kernel.workspace(problem),
                    "chosen": kernel == chosen,
                }
            )
    rows.sort(key=lambda row: (row["call_seconds"], row["seconds"]))
    return {
        "problem": str(problem),
        "offsets": len(stage.offsets),
        "best": {name: rows[0][name] for name in ("kernel", "config", "seconds")},
        "rows": rows,
        "ruled_out": ruled_out,
    }


def _terms(made: Any) -> dict[str, float]:
    """The seconds that a prediction names, besides all together."""
    numbers = {name: value for name, value in asdict(made).items() if isinstance(value, float)}
    return {name: value for name, value in numbers.items() if name != "seconds" and math.isfinite(value)}


def _report(stage: dict[str, Any], arch: Arch, top: int) -> Iterator[RenderableType]:
    rows = stage["rows"]
    least = min(row["seconds"] for row in rows)
    shown = rows[:top]
    names = dict.fromkeys(name for row in shown for name in row["config"])
    differing = [name for name in names if len({row["config"].get(name) for row in shown}) > 1]
    terms = list(dict.fromkeys(name for row in shown for name in row["terms"]))
    cells = [
        [
            row["kernel"],
            " ".join(f"{name}={row['config'][name]}" for name in differing if name in row["config"]),
            units.seconds(row["seconds"]),
            units.percent(row["seconds"] / least - 1),
            units.seconds(row["call_seconds"]),
            row["bound"],
            *(units.seconds(row["terms"][name]) if row["terms"].get(name) else "-" for name in terms),
            "<- chosen" if row["chosen"] else "",
        ]
        for row in shown
    ]
    columns = [("kernel", "left"), ("constants", "left"), ("time", "right"), ("excess", "right"), ("call", "right")]
    columns += [("bound", "left"), *((name, "right") for name in terms), ("", "left")]
    yield table(f"{stage['problem']}, {arch.title}", columns, cells)
    yield Text()
    count = len(rows)
    said = f"The best {len(shown)} of {count} configurations" if count > len(shown) else f"All {count} configurations"
    alike = " ".join(f"{name}={value}" for name, value in rows[0]["config"].items() if name not in differing)
    yield Text(
        f"{said}; predicted, not measured. excess: over the least. call: of many in a row, with the host's part."
    )
    if alike:
        yield Text(f"{'Alike in all of these' if len(shown) > 1 else 'Constants'}: {alike}")
    if stage["offsets"] > 1:
        yield Text(f"Launched {stage['offsets']} times, each at other offsets.")
    if rows[0]["workspace"]:
        yield Text(f"Workspace: {units.quantity(rows[0]['workspace'], 'B')}.")
    for reason, configurations in Counter(stage["ruled_out"].values()).items():
        yield Text(f"Ruled out, {configurations} configuration{'s' if configurations > 1 else ''}: {reason}")
