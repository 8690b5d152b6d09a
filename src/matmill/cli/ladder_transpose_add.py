"""``matmill ladder transpose_add``: what its help says, and the sum that the arguments describe."""

from __future__ import annotations

import argparse

from matmill.bench.problems.transpose_add import ARTICLE, CASES, EMULATED, case, transposed_sum
from matmill.dtypes import BF16, ELEMENTWISE
from matmill.errors import ArgumentError, unknown_name
from matmill.problem import Geam

NAME = "transpose_add"
#: Elements that are emulated without being asked for in so many words: a minute or two on two cores.
MOST_EMULATED = 20_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what this ladder does with the options that others have as well."""
    largest, small = ("x".join(map(str, sizes)) for sizes in (ARTICLE, EMULATED))
    parser.add_argument_group(
        f"ladder {NAME}",
        "x transposed plus y in one pass. --m and --n are the rows and columns of x; y and the result have n rows and "
        f"m columns, and everything is packed row-major. Sizes default to the article's, x {largest}, on a GPU and to "
        f"{small} emulated, --dtype to {BF16.name}. Cases: {', '.join(CASES)}. Every element is compared bit by bit. "
        "Percentages refer to a copy timed in the same run.",
    )


def problem(args: argparse.Namespace, on: str) -> Geam:
    """The sum that the arguments describe, for a run ``on`` the GPU or the emulator."""
    dtype = ELEMENTWISE.get(args.dtype or BF16.name)
    if dtype is None:
        raise unknown_name("--dtype", args.dtype, ELEMENTWISE)
    if args.k is not None:
        raise ArgumentError(
            argument="--k",
            got=f"{args.k} for ladder {NAME}",
            wanted="--m and --n alone, the rows and columns of x",
            fix="Leave it away.",
        )
    named = case(args.case) if args.case is not None else None
    m, n = named or (ARTICLE if on == "gpu" else EMULATED)
    found = transposed_sum(args.m or m, args.n or n, dtype)
    if on == "emulator" and args.on != on and found.m * found.n > MOST_EMULATED:
        raise ArgumentError(
            argument="--m, --n",
            got=f"x of {found.n} x {found.m} on a machine without a usable GPU",
            wanted=f"m * n of at most {MOST_EMULATED:.0e}, which the emulator does in minutes",
            fix="Take smaller sizes, for instance 2000 x 1000, or --on emulator to wait for it.",
        )
    return found
