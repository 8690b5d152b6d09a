"""``matmill ladder``: every rung of a ladder on one problem, checked, counted, and timed where there is a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from matmill import gpu
from matmill.arch import DEFAULT, get
from matmill.bench.ladder.emulated import emulate
from matmill.bench.ladder.emulated_transfers import emulate_transfers
from matmill.bench.ladder.measured import measure
from matmill.bench.ladder.measured_transfers import measure_transfers
from matmill.bench.ladder.production import rows_of
from matmill.bench.ladder.results import Outcome
from matmill.bench.ladder.selection import pick
from matmill.bench.ladder.sweep import Sweep
from matmill.bench.plots.ladder import draw
from matmill.bench.plots.sweep import draw_sweep
from matmill.cli import ladder_hgemm, ladder_inner, ladder_sweep, ladder_transpose_add, tables
from matmill.cli.console import answer, output, progress
from matmill.cli.options import Subparsers, plot_file, seed, seed_value, size
from matmill.dtypes import ELEMENTWISE
from matmill.errors import ArgumentError, NoGPUError, unknown_name
from matmill.problem import Geam, Gemm
from matmill.registry import LADDERS

ON = ("auto", "gpu", "emulator")
#: (m, n, k) of a run that names none of them: on a GPU large enough to fill it; emulated the least that every rung
#: takes as it is, with several steps of k, which ends within half a minute on two cores.
GPU_SIZES = (4096, 4096, 4096)
EMULATOR_SIZES = (256, 256, 64)


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ladder",
        help="run the rungs of a ladder, checked and counted, and timed where there is a GPU",
        description="Run every rung of a ladder on random matrices, check each element, and show what each rung costs. "
        "On a GPU the rungs are timed in turns with what libraries have; without one they run as PTX in an emulator "
        "that counts memory traffic, bank conflicts, barriers and races.",
    )
    add = parser.add_argument
    add("ladder", nargs="?", help=f"one of {', '.join(LADDERS)}")
    add("--list", action="store_true", help="list the ladders and their rungs, and stop")
    add(
        "--n",
        type=size,
        help=f"m = n = k (default: m, n, k {_said(GPU_SIZES)} on a GPU, {_said(EMULATOR_SIZES)} emulated)",
    )
    add("--m", type=size, help="rows of A and C, or of x")
    add("--k", type=size, help="columns of A, rows of B, for instance 5e7")
    add("--on", default="auto", metavar="|".join(ON), help="where to run (default: the GPU, if there is one)")
    add("--arch", help=f"whose peaks and limits percentages refer to (default: the GPU present, else {DEFAULT})")
    add("--rungs", help="names with commas between, for instance 'naive,ilp,shared(32)' (default: all)")
    add("--seed", type=seed_value, help="seed of the random matrices (default: a fresh one)")
    add("--warm", action="store_true", help="on a GPU, leave the L2 cache as the run before left it")
    add("--json", action="store_true", help="print one JSON document instead of tables")
    add("--by-line", action="store_true", help="emulated, with --json: add the counters of each source line")
    add("--plot", metavar="FILE", help="draw the result into FILE (.png or .svg)")
    add(
        "--sweep",
        metavar="LOW..HIGH",
        help=f"on a GPU, rates at m = n = k = LOW, twice that, and so on to HIGH, of the ladders {_of('sweep')}",
    )
    add("--dtype", metavar="|".join(ELEMENTWISE), help=f"type of every matrix, of the ladders {_of('dtype')}")
    add(
        "--case",
        metavar="NAME",
        help=f"sizes by name, of the ladders {_of('case')}; --m, --n and --k change them",
    )
    ladder_hgemm.add_arguments(parser)
    ladder_inner.add_arguments(parser)
    ladder_transpose_add.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs a ladder and shows the result; 1 where a row is wrong."""
    if args.list:
        output().print(tables.listing(LADDERS))
        return 0
    plot = plot_file(args.plot)
    if args.sweep is not None:
        return _sweep(args, plot)
    outcome = _run(args)
    answer(outcome.as_dict(), tables.report(outcome), as_json=args.json, plot=plot, draw=partial(draw, outcome))
    return 0 if outcome.ok else 1


def _sweep(args: argparse.Namespace, plot: Path | None) -> int:
    """Runs a ladder at every size of ``--sweep`` and shows the rates; 1 where a row is wrong."""
    refuse(args, _ladder(args.ladder))
    sizes = ladder_sweep.sizes(args.sweep)
    ladder_sweep.check(args, _on(args.on))
    sweep = Sweep(tuple(_run(argparse.Namespace(**{**vars(args), "n": n})) for n in sizes))
    answer(sweep.as_list(), ladder_sweep.report(sweep), as_json=args.json, plot=plot, draw=partial(draw_sweep, sweep))
    return 0 if sweep.ok else 1


def _run(args: argparse.Namespace) -> Outcome:
    """The outcome of the run that the arguments describe."""
    name, on = _ladder(args.ladder), _on(args.on)
    arch = get(args.arch, "--arch") if args.arch is not None else None
    rungs: Sequence[Any] = pick(rows_of(name), args.rungs)
    notes: tuple[str, ...] = ()
    problem: Gemm | Geam
    refuse(args, name)
    if name == ladder_inner.NAME:
        problem = ladder_inner.problem(args, on)
        rungs, notes = ladder_inner.launched(rungs, args, on)
    elif name == ladder_hgemm.NAME:
        problem = ladder_hgemm.problem(args, on)
    elif name == ladder_transpose_add.NAME:
        problem = ladder_transpose_add.problem(args, on)
    else:
        problem = _problem(args, GPU_SIZES if on == "gpu" else EMULATOR_SIZES)
    fixed = seed(args.seed)
    machine = arch or get(DEFAULT)
    with progress() as report:
        if name == "memory" and isinstance(problem, Gemm):
            if on == "gpu":
                found = measure_transfers(rungs, problem, arch, seed=fixed, progress=report)
            else:
                found = emulate_transfers(rungs, problem, machine, seed=fixed, progress=report)
        elif on == "gpu":
            found = measure(name, rungs, problem, arch, seed=fixed, cold=not args.warm, progress=report)
        else:
            found = emulate(name, rungs, problem, machine, seed=fixed, by_line=args.by_line, progress=report)
    return replace(found, notes=(*found.notes, *notes))


#: Options that some ladders alone have.
_OF_SOME = {
    "case": (ladder_inner.NAME, ladder_transpose_add.NAME),
    "dtype": (ladder_hgemm.NAME, ladder_inner.NAME, ladder_transpose_add.NAME),
    "sweep": (ladder_hgemm.NAME, "sgemm"),
    **dict.fromkeys(("layout", "gs", "bs"), (ladder_inner.NAME,)),
}


def _of(option: str) -> str:
    """The ladders that have it, in words."""
    *others, last = _OF_SOME[option]
    return f"{', '.join(others)} and {last}" if others else last


def refuse(args: argparse.Namespace, ladder: str) -> None:
    """Raises :class:`~matmill.errors.ArgumentError` where an option of other ladders was given to this one."""
    for name, ladders in _OF_SOME.items():
        if getattr(args, name) is not None and ladder not in ladders:
            raise ArgumentError(
                argument=f"--{name}",
                got=f"{getattr(args, name)!r} for ladder {ladder}",
                wanted=f"it with ladder {' or '.join(ladders)} alone",
                fix=f"Leave it away, or run `matmill ladder {ladders[0]}`.",
            )


def _ladder(name: str | None) -> str:
    if name is None:
        raise ArgumentError(
            argument="ladder",
            got="none",
            wanted=f"one of {', '.join(LADDERS)}",
            fix="See `matmill ladder --list`.",
        )
    if name not in LADDERS:
        raise unknown_name("ladder", name, LADDERS)
    return name


def _on(name: str) -> str:
    """``gpu`` or ``emulator``. Raises :class:`~matmill.errors.NoGPUError` where a GPU is demanded and absent."""
    if name not in ON:
        raise unknown_name("--on", name, ON)
    if name == "emulator":
        return name
    reason = gpu.unavailable()
    if reason is None:
        return "gpu"
    if name == "gpu":
        raise NoGPUError(
            argument="--on",
            got=f"'gpu', but {reason}",
            wanted="a usable NVIDIA GPU",
            fix="Use --on emulator, which needs none; `matmill doctor` says more.",
        )
    return "emulator"


def _problem(args: argparse.Namespace, default: tuple[int, int, int]) -> Gemm:
    """``--n`` alone names all three sizes; where it is not given, those not named are the default's."""
    m, n, k = (args.n,) * 3 if args.n else default
    return Gemm(m=args.m or m, n=n, k=args.k or k)


def _said(sizes: tuple[int, int, int]) -> str:
    return " ".join(str(size) for size in sizes)
