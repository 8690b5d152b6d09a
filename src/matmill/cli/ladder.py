"""``matmill ladder``: every rung of a ladder on one problem, checked, counted, and timed on a GPU if there is one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill.arch import DEFAULT, get
from matmill.bench.problems.options import ProblemOptions
from matmill.cli import ladder_page, ladder_sweep, tables
from matmill.cli.console import answer, output, progress, say_how_long
from matmill.cli.ladder_summary import summary
from matmill.cli.options import Subparsers, plot_file, seed, seed_value, size, writable
from matmill.dtypes import ELEMENTWISE
from matmill.errors import ArgumentError, NoGPUError, unknown_name
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.ladder import Ladder, On
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.run import run as run_ladder
from matmill.ladders.runner.selection import pick
from matmill.ladders.runner.sweep import Sweep
from matmill.ladders.runner.sweep_plot import draw_sweep
from matmill.runtime import gpu

ON = ("auto", "gpu", "emulator")
#: Options that some ladders take and others do not.
_SHARED = ("case", "dtype", "sweep")


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ladder",
        help="run the rungs of a ladder, checked and counted, and timed where there is a GPU",
        description="Run every rung of a ladder on random matrices, check each element, and show what each rung costs. "
        "On a GPU the rungs and what libraries have are timed in one run, interleaved; without one they run as PTX in "
        "an emulator that counts memory traffic, bank conflicts, barriers and races.",
    )
    large, small = (" ".join(map(str, LADDERS["sgemm"].sizes[on])) for on in ("gpu", "emulator"))
    add = parser.add_argument
    add("ladder", nargs="?", help=f"one of {', '.join(LADDERS)}")
    add("--list", action="store_true", help="list the ladders and their rungs, and stop")
    add("--n", type=size, help=f"m = n = k (default: m, n, k {large} on a GPU, {small} emulated)")
    add("--m", type=size, help="rows of A and C, or of x")
    add("--k", type=size, help="columns of A, rows of B, for instance 5e7")
    add("--on", default="auto", metavar="|".join(ON), help="where to run (default: the GPU, if there is one)")
    add("--arch", help=f"whose peaks and limits percentages refer to (default: the GPU present, else {DEFAULT})")
    add("--rungs", help="names with commas between, for instance 'naive,ilp,shared(32)' (default: those of the story)")
    add("--all", action="store_true", help="all rungs, and emulated all counters")
    add("--seed", type=seed_value, help="seed of the random matrices (default: a fresh one)")
    add("--warm", action="store_true", help="on a GPU, leave the L2 cache as the run before left it")
    add("--json", action="store_true", help="print one JSON document instead of tables")
    add("--by-line", action="store_true", help="emulated, with --json: add the counters of each source line")
    add("--html", metavar="FILE", type=Path, help="write tables, figures and each rung's changes as a page into FILE")
    add("--plot", metavar="FILE", help="draw the result into FILE (.png or .svg)")
    add(
        "--sweep",
        metavar="LOW..HIGH",
        help=f"on a GPU, rates at m = n = k = LOW, twice that, and so on to HIGH, of the ladders {_takers_of('sweep')}",
    )
    add(
        "--dtype",
        metavar="|".join(ELEMENTWISE),
        help=f"type of every matrix, of the ladders {_takers_of('dtype')}",
    )
    add(
        "--case",
        metavar="NAME",
        help=f"sizes by name, of the ladders {_takers_of('case')}; --m, --n and --k change them",
    )
    for ladder in LADDERS.values():
        if ladder.help:
            group = parser.add_argument_group(f"ladder {ladder.name}", ladder.help)
            for option in ladder.own:
                kind = size if option.constant else str
                group.add_argument(f"--{option.name}", metavar=option.metavar, type=kind, help=option.help)


def run(args: argparse.Namespace) -> int:
    """Run a ladder and show the result; return 1 if a row is wrong."""
    if args.list:
        output().print(tables.listing({name: ladder.rungs for name, ladder in LADDERS.items()}))
        return 0
    plot = plot_file(args.plot)
    if args.sweep is not None:
        return _sweep(args, plot)
    if args.html is not None:
        writable(args.html, "--html")
    outcome = _run(args)
    if args.html is not None:
        args.html.write_text(ladder_page.page(outcome), encoding="utf-8")
    answer(outcome.as_dict(), _report(args, outcome), as_json=args.json, plot=plot, draw=partial(draw, outcome))
    return 0 if outcome.ok else 1


def _report(args: argparse.Namespace, outcome: Outcome) -> Iterable[RenderableType]:
    """Yield the summary of an emulated run, the tables of counters if rungs were named or all ran, and what is next."""
    summarised = any(row.bound for row in outcome.rows)
    if summarised:
        yield from summary(outcome)
        yield Text()
    if args.all or args.rungs or not summarised:
        yield from tables.report(outcome)
    else:
        yield Text("\n".join([*tables.remarks(outcome), f"all rungs and counters: matmill ladder {args.ladder} --all"]))
    if summarised:
        yield Text("next: matmill learn 1")


def _sweep(args: argparse.Namespace, plot: Path | None) -> int:
    """Run a ladder at every size of ``--sweep`` and show the rates; return 1 if a row is wrong."""
    _refuse(args, _ladder(args.ladder))
    sizes = ladder_sweep.sizes(args.sweep)
    ladder_sweep.check(args, _on(args.on))
    sweep = Sweep(tuple(_run(argparse.Namespace(**{**vars(args), "n": n})) for n in sizes))
    answer(sweep.as_list(), ladder_sweep.report(sweep), as_json=args.json, plot=plot, draw=partial(draw_sweep, sweep))
    return 0 if sweep.ok else 1


def _run(args: argparse.Namespace) -> Outcome:
    """Return the outcome of the run that the arguments describe."""
    ladder, on = _ladder(args.ladder), _on(args.on)
    arch = get(args.arch, "--arch") if args.arch is not None else None
    picked = _picked(args, ladder)
    _refuse(args, ladder)
    request = ProblemOptions(m=args.m, n=args.n, k=args.k, case=args.case, dtype=args.dtype, layout=args.layout)
    problem = ladder.problem(request, ladder.sizes[on])
    if on == "emulator":
        sizes = ladder.subject.sizes(problem)
        if args.on != on:
            ladder.too_long.check(sizes)
        say_how_long(ladder.too_long.about(sizes, len(picked) / len(ladder.rows)))
    as_on_gpu = ladder.as_on_gpu and on == "emulator" and (args.m, args.n, args.k) == (None, None, None)
    given = {option.constant: getattr(args, option.name) for option in ladder.own if option.constant}
    rungs, notes = ladder.launches(picked, {name: value for name, value in given.items() if value is not None}, on)
    fixed = seed(args.seed)
    with progress() as report:
        outcome = run_ladder(
            *(ladder.name, rungs, problem, on, arch),
            seed=fixed,
            cold=not args.warm,
            by_line=args.by_line,
            bounds=True,
            like=ladder.problem(replace(request, m=None, n=None, k=None), ladder.sizes["gpu"]) if as_on_gpu else None,
            progress=report,
        )
    return replace(outcome, notes=(*outcome.notes, *notes))


def _picked(args: argparse.Namespace, ladder: Ladder[Any]) -> tuple[Any, ...]:
    """Return the rungs to run: those named, else all with ``--all``, else those that tell the ladder's story."""
    if args.rungs is not None and args.all:
        raise ArgumentError(
            argument="--all", got=f"it with --rungs {args.rungs}", wanted="one of the two", fix="Omit one of them."
        )
    names = args.rungs if args.all or args.rungs is not None else ",".join(ladder.short) or None
    return pick(ladder.rows, names)


def _takers(option: str) -> list[str]:
    """Return the ladders that take ``option``."""
    own = {ladder.name: {each.name for each in ladder.own} for ladder in LADDERS.values()}
    return sorted(name for name, ladder in LADDERS.items() if option in ladder.options | own[name])


def _takers_of(option: str) -> str:
    """Format the ladders that take ``option``."""
    *others, last = _takers(option)
    return f"{', '.join(others)} and {last}" if others else last


def _refuse(args: argparse.Namespace, ladder: Ladder[Any]) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` for an option of other ladders."""
    for option in (*_SHARED, *(each.name for other in LADDERS.values() for each in other.own)):
        takers = _takers(option)
        if getattr(args, option) is not None and ladder.name not in takers:
            raise ArgumentError(
                argument=f"--{option}",
                got=f"{getattr(args, option)!r} for ladder {ladder.name}",
                wanted=f"it with ladder {' or '.join(takers)} alone",
                fix=f"Omit it, or run `matmill ladder {takers[0]}`.",
            )


def _ladder(name: str | None) -> Ladder[Any]:
    if name is None:
        raise ArgumentError(
            argument="ladder",
            got="none",
            wanted=f"one of {', '.join(LADDERS)}",
            fix="See `matmill ladder --list`.",
        )
    if name not in LADDERS:
        raise unknown_name("ladder", name, LADDERS)
    return LADDERS[name]


def _on(name: str) -> On:
    """Return ``gpu`` or ``emulator``. Raises :class:`~matmill.errors.NoGPUError` if a GPU is required and absent."""
    if name not in ON:
        raise unknown_name("--on", name, ON)
    if name == "emulator":
        return "emulator"
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
