"""``matmill ladder inner``: the options that this ladder alone has, and the problem and launches they describe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from matmill.bench.ladder import selection
from matmill.bench.ladder.selection import for_emulator, of_paper
from matmill.bench.problems.inner import CASES, EMULATED_K, LAYOUTS, case, inner_product
from matmill.cli.options import size
from matmill.dtypes import ALL, F32
from matmill.errors import ArgumentError, unknown_name
from matmill.kernel import Rung
from matmill.problem import Gemm

NAME = "inner"
GPU_CASE = "MTXA"
EMULATOR_SIZES = (3, 3, EMULATED_K)
#: Multiply-adds that are emulated without being asked for in so many words: some minutes on two cores.
MOST_EMULATED = 50_000_000

_MOST_BLOCKS = 2**31 - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares this ladder's options."""
    group = parser.add_argument_group(
        "ladder inner",
        "D = E F for few outputs and a long k. --n defaults to m; sizes by themselves default to "
        f"{GPU_CASE} on a GPU and m=n=3, k=1e5 emulated, --dtype to {F32.name}. Cases, of the paper: "
        f"{', '.join(CASES)}. Percentages refer to the data sheet's memory bandwidth.",
    )
    add = group.add_argument
    add("--layout", metavar="|".join(LAYOUTS), help=f"how F is stored (default: {LAYOUTS[0]})")
    add("--gs", type=size, help="blocks of the grid, of the paper's rungs basic and phvm")
    add("--bs", type=size, help="threads per block of basic and phvm, a multiple of 32")


def problem(args: argparse.Namespace, on: str) -> Gemm:
    """The product that the arguments describe, for a run ``on`` the GPU or the emulator."""
    dtype = ALL.get(args.dtype or F32.name)
    if dtype is None:
        raise unknown_name("--dtype", args.dtype, ALL)
    layout = args.layout or LAYOUTS[0]
    if layout not in LAYOUTS:
        raise unknown_name("--layout", layout, LAYOUTS)
    named = case(args.case) if args.case is not None else None
    m, n, k = named or (case(GPU_CASE) if on == "gpu" else EMULATOR_SIZES)
    if named is None:  # one of m and n alone names both
        m, n = args.n or m, args.m or n
    found = inner_product(args.m or m, args.n or n, args.k or k, dtype, layout)
    terms = found.m * found.n * found.k
    if on == "emulator" and args.on != on and terms > MOST_EMULATED:
        raise ArgumentError(
            argument="--k",
            got=f"m={found.m} n={found.n} k={found.k} on a machine without a usable GPU",
            wanted=f"m * n * k of at most {MOST_EMULATED:.0e}, which the emulator does in minutes",
            fix="Take a smaller --k, for instance 1e5, or --on emulator to wait for it.",
        )
    return found


def launched(
    rungs: Sequence[Rung[Gemm]], args: argparse.Namespace, on: str
) -> tuple[tuple[Rung[Gemm], ...], tuple[str, ...]]:
    """The rungs, those of the paper with the launch that ``--gs`` and ``--bs`` ask for, and what to say of that."""
    given = {name.upper(): getattr(args, name) for name in ("gs", "bs") if getattr(args, name) is not None}
    _check_launch(given, of_paper(rungs))
    found, said = for_emulator(rungs, **given) if on == "emulator" else selection.launched(rungs, given)
    return found, (said,) if said else ()


def _check_launch(given: dict[str, int], papers: Sequence[Rung[Gemm]]) -> None:
    if not given:
        return
    if not papers:
        raise ArgumentError(
            argument=f"--{next(iter(given)).lower()}",
            got="rungs that choose their own launch",
            wanted="basic or phvm among --rungs",
            fix="Name one of them, or leave the option away.",
        )
    bs, gs = given.get("BS", 32), given.get("GS", 1)
    if bs % 32 or bs > 1024:
        raise ArgumentError(
            argument="--bs", got=str(bs), wanted="a multiple of 32, at most 1024", fix="Blocks are whole warps."
        )
    if gs > _MOST_BLOCKS:
        raise ArgumentError(argument="--gs", got=str(gs), wanted=f"at most {_MOST_BLOCKS}", fix="Take fewer blocks.")
