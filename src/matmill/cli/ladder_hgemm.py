"""``matmill ladder hgemm``: what its help says, and the product that the arguments describe."""

from __future__ import annotations

import argparse

from matmill.bench.problems.hgemm import EMULATED, HALVES, half_product
from matmill.dtypes import F16
from matmill.errors import ArgumentError, unknown_name
from matmill.problem import Gemm

NAME = "hgemm"
GPU_SIZES = (4096, 4096, 4096)
#: Multiply-adds that are emulated without being asked for in so many words: some minutes on two cores.
MOST_EMULATED = 200_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what this ladder does with the options that others have as well."""
    largest, small = (" ".join(map(str, sizes)) for sizes in (GPU_SIZES, EMULATED))
    parser.add_argument_group(
        f"ladder {NAME}",
        f"C = A B of 16-bit floats on the matrix units. Sizes default to m, n, k {largest} on a GPU and {small} "
        f"emulated, --dtype ({' or '.join(HALVES)}) to {F16.name}. Of float16, all rungs but the last sum in float16, "
        "as the ladder's source does, and are checked as such. Percentages refer to the matrix units' rate by the data "
        "sheet, with float32 sums.",
    )


def problem(args: argparse.Namespace, on: str) -> Gemm:
    """The product that the arguments describe, for a run ``on`` the GPU or the emulator."""
    dtype = HALVES.get(args.dtype or F16.name)
    if dtype is None:
        raise unknown_name("--dtype", args.dtype, HALVES)
    m, n, k = (args.n,) * 3 if args.n else GPU_SIZES if on == "gpu" else EMULATED
    found = half_product(args.m or m, n, args.k or k, dtype)
    if on == "emulator" and args.on != on and found.m * found.n * found.k > MOST_EMULATED:
        raise ArgumentError(
            argument="--m, --n, --k",
            got=f"m={found.m} n={found.n} k={found.k} on a machine without a usable GPU",
            wanted=f"m * n * k of at most {MOST_EMULATED:.0e}, which the emulator does in minutes",
            fix="Take smaller sizes, for instance --n 512, or --on emulator to wait for it.",
        )
    return found
