"""``matmill emulate``: any kernel without a GPU, with its counts, its memory traffic by line and its hazards."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matmill.cli.console import output, progress, say_how_long, show, show_json
from matmill.cli.emulate_arguments import FORMS, Files, Value, example, parse_argument, parse_symbol
from matmill.cli.emulate_report import shown
from matmill.cli.expected import pair
from matmill.cli.files import save
from matmill.cli.options import Subparsers, writable
from matmill.errors import ArgumentError

if TYPE_CHECKING:
    from matmill.bench.progress import Progress
    from matmill.emulator import Order
    from matmill.testing.arguments import At
    from matmill.testing.expected import Pair
    from matmill.testing.kernel import PtxKernel, Settings
    from matmill.testing.report import LaunchReport
    from matmill.testing.suppressions import Suppression


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "emulate",
        help="run any CUDA C++ or PTX kernel without a GPU",
        description="Runs one launch of a kernel in the emulator and reports counts, memory traffic by source line, "
        "and hazards: races, accesses out of bounds, reads of uninitialised shared memory, missing waits, deadlocks.",
        epilog="Exit codes: 0 no error, 1 errors (with --strict any hazard), 2 usage. Negative numbers: --arg=-5.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="PTX (.ptx) or CUDA C++ (.cu)")
    parser.add_argument(
        "--entry", metavar="NAME", help="the kernel as C++ spells it: 'scale<float, 4>' (default: the only one)"
    )
    parser.add_argument("--grid", metavar="X[,Y,Z]", type=extent, default=(1, 1, 1), help="blocks (default 1)")
    parser.add_argument(
        "--block", metavar="X[,Y,Z]", type=extent, help="threads per block (else the host code's are shown)"
    )
    parser.add_argument("--shared", metavar="BYTES", type=whole, default=0, help="dynamic shared memory (default 0)")
    add_launch_options(parser)
    parser.add_argument(
        "--out",
        metavar="INDEX=FILE.npy",
        action="append",
        default=[],
        help="write array argument INDEX (the first is 0; 2.1 is a member of a struct) to a file after the run",
    )
    parser.add_argument(
        "--expect",
        metavar="[INDEX=]FILE.npy",
        action="append",
        default=[],
        help="compare array argument INDEX (default: the only output) with a file; fail where they differ",
    )
    parser.add_argument(
        "--tolerance",
        metavar="R",
        type=_tolerance,
        help="with --expect: how far elements may differ, relative to the largest (default: rounding; 0 for integers)",
    )
    parser.add_argument("--witness", metavar="FILE", type=Path, help="write the order that shows the first error")
    drawn = "draw the roles of the first block's warps, and what they wait for, into FILE"
    parser.add_argument("--timeline", metavar="FILE.svg", type=Path, help=drawn)
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as a page into FILE")
    parser.add_argument("--sarif", metavar="FILE", type=Path, help="write the hazards for code review tools into FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a launch has besides its kernel, grid and block, for all commands that emulate one."""
    parser.add_argument("--arg", metavar="VALUE", action="append", default=[], help=f"in the kernel's order: {FORMS}")
    parser.add_argument(
        "--symbol",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="what a __constant__ or __device__ variable has before the launch, numbers with their type",
    )
    parser.add_argument("--target", metavar="SM", default="sm_90a", help="what to compile .cu for (default sm_90a)")
    parser.add_argument(
        "-I", "--include", metavar="DIR", type=Path, action="append", default=[], help="where else headers are"
    )
    parser.add_argument("-D", "--define", metavar="NAME[=VALUE]", action="append", default=[], help="a macro")
    parser.add_argument("--std", metavar="NAME", help="the language's standard (default c++17)")
    parser.add_argument("--option", metavar="WORD", action="append", default=[], help="any option of NVRTC's")
    parser.add_argument(
        "--late-copies", action="store_true", help="let asynchronous copies and wgmma act no earlier than waits demand"
    )
    parser.add_argument("--schedule", metavar="SEED", type=whole, default=0, help="this order of warps alone")
    parser.add_argument("--order", metavar="FILE", type=Path, help="the order of warps of a witness alone")
    parser.add_argument(
        "--orders", metavar="N", type=whole, help="how many orders (default: as many as double the time; 1 is fastest)"
    )
    parser.add_argument(
        "--cluster", metavar="X[,Y,Z]", type=extent, default=(1, 1, 1), help="blocks per cluster (default 1)"
    )
    parser.add_argument("--cooperative", action="store_true", help="a launch whose blocks may use grid.sync()")
    parser.add_argument("--pdl", action="store_true", help="a launch that must wait for the one before it")
    parser.add_argument(
        "--pdl-writes", metavar="NAME,...", help="with --pdl: the arrays (parameters) that the launch before writes"
    )
    parser.add_argument(
        "--initcheck",
        action="store_true",
        help="report reads of out:FILE:TYPE:SHAPE arrays (and those all NaN) before a store",
    )
    parser.add_argument("--no-races", action="store_true", help="do not look for races: about 3 times as fast")
    parser.add_argument(
        "--suppressions", metavar="FILE", type=Path, help="hazards that are accepted: kind, source line, reason"
    )
    parser.add_argument("--strict", action="store_true", help="let warnings and notes fail too")


def extent(text: str) -> tuple[int, int, int]:
    """Parse one to three positive whole numbers, as ``16,16``."""
    parts = text.split(",")
    if len(parts) > 3 or not all(part.isdigit() and int(part) for part in parts):
        message = f"got {text!r}; wanted one to three positive whole numbers, for instance 16,16"
        raise argparse.ArgumentTypeError(message)
    x, y, z = (*(int(part) for part in parts), *(1 for _ in range(3 - len(parts))))
    return x, y, z


def whole(text: str) -> int:
    """Parse a whole number, zero or more."""
    if not text.isdigit():
        message = f"got {text!r}; wanted a whole number, zero or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _tolerance(text: str) -> float:
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < math.inf:
        message = f"got {text!r}; wanted a number, zero or more, such as 1e-5"
        raise argparse.ArgumentTypeError(message)
    return tolerance


def run(args: argparse.Namespace) -> int:
    """Emulate, write files, print the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.testing.expected import expectations  # noqa: PLC0415 — other commands should not pay for it

    for name in ("html", "sarif", "witness", "timeline"):
        if getattr(args, name) is not None:
            writable(getattr(args, name), f"--{name}")
    report, named, files, pairs = launched(args, timeline=bool(args.timeline or args.html))
    if not report.faulted:
        for path, name in files.items():
            save(path, np.asarray(named[name]))
    compared = [] if report.faulted else list(expectations(pairs, args.tolerance))
    wrong = [each.hazard(report.launch.kernel) for each in compared if not each.ok]
    report = replace(report, hazards=(*report.hazards, *wrong))
    _write(args, report)
    if args.witness is not None:
        _write_witness(args.witness, report)
    outputs = [] if report.faulted else [_output(path, name, named[name]) for path, name in files.items()]
    if args.json:
        document = report.as_dict() | {"outputs": outputs}
        if args.expect:
            document["expected"] = [asdict(each) for each in compared]
        if args.orders is None:
            del document["orders"]  # it depends on the machine's speed, unlike all others
        show_json(document)
    else:
        show(shown(report, outputs, compared, output().width))
    return 0 if report.ok else 1


def launched(
    args: argparse.Namespace, *, timeline: bool = False
) -> tuple[LaunchReport, dict[str, Value], Files, list[Pair]]:
    """Run the launch of a command line, with the events of its ``timeline`` if they are wanted.

    Returns the report, the arguments by name, which of them go to files, and those to compare with files.
    """
    from matmill.testing.kernel import load  # noqa: PLC0415 — other commands should not pay for these

    began = time.perf_counter()
    kernel = load(_file(args.file), args.entry, args.include, _options(args), args.target)
    files: Files = {}
    if args.block is None:
        raise ArgumentError(
            argument="--block", got="nothing", wanted="the threads of a block", fix=example(kernel, args.file)
        )
    values = _values(args.arg, kernel, args.file, files)
    symbols = dict(parse_symbol(text, files) for text in args.symbol)
    named = _named(values) | symbols
    files |= _files(args.out, named)
    pairs = [pair(text, named, files) for text in args.expect]
    written = None if args.pdl_writes is None else args.pdl_writes.split(",")
    with progress() as tell:
        settings = replace(_settings(args, began), progress=_telling(kernel.unit.spelled, tell), timeline=timeline)
        report = kernel.launch(
            args.grid, args.block, values, shared=args.shared, cluster=args.cluster, cooperative=args.cooperative,
            pdl=args.pdl or written is not None, pdl_writes=written, strict=args.strict, initcheck=args.initcheck,
            symbols=symbols, settings=settings, suppressions=_suppressions(args.suppressions),
        )  # fmt: skip
    return report, named, files, pairs


def _file(path: Path) -> Path:
    if path.suffix.lower() not in {".ptx", ".cu", ".cuh"}:
        raise ArgumentError(
            argument="FILE", got=f"{str(path)!r}", wanted="a file ending in .ptx, .cu or .cuh", fix="Rename it."
        )
    return path


def _write(args: argparse.Namespace, report: LaunchReport) -> None:
    """Write the report as a page, as SARIF and as a timeline, if requested."""
    if args.html is not None:
        from matmill.page.launch import page  # noqa: PLC0415 — see run

        args.html.write_text(page(report), encoding="utf-8")
    if args.sarif is not None:
        from matmill.testing.sarif import sarif  # noqa: PLC0415 — see run

        args.sarif.write_text(json.dumps(sarif([report]), indent=1) + "\n", encoding="utf-8")
    if args.timeline is not None:
        from matmill.page.timeline import timeline  # noqa: PLC0415 — see run

        args.timeline.write_text(timeline(report.launch.kernel, report.timeline), encoding="utf-8")


def _telling(kernel: str, tell: Progress) -> Callable[[int, int], None]:
    """Return what tells of a launch's progress, and after the second batch how long it takes, if that is long."""
    times: list[float] = []

    def told(done: int, total: int) -> None:
        times.append(time.perf_counter())
        if done == 2:
            say_how_long((times[1] - times[0]) * total)
        tell(kernel, done, total)

    return told


def _settings(args: argparse.Namespace, began: float) -> Settings:
    """Return the orders in which the launch runs: one that is asked for, else as many as take as long as the first."""
    from matmill.emulator import Order  # noqa: PLC0415 — see run
    from matmill.testing.findings import further_orders  # noqa: PLC0415 — see run
    from matmill.testing.kernel import Settings  # noqa: PLC0415 — see run

    if args.order is not None:
        return Settings(races=not args.no_races, order=_read_order(args.order))
    order = Order(args.schedule, late_lanes=bool(args.schedule % 2), late_copies=args.late_copies)
    if args.orders is None and (order != Order() or args.no_races):
        return Settings(races=not args.no_races, order=order)
    most, since = (None, began) if args.orders is None else (max(args.orders - 1, 0), None)
    return Settings(
        races=not args.no_races,
        order=order,
        orders=lambda program, launch: islice(further_orders(program, launch), most),
        since=since,
    )


def _read_order(path: Path) -> Order:
    """Return the order in a witness's file."""
    from matmill.emulator import Order  # noqa: PLC0415 — see run

    try:
        order = json.loads(path.read_text(encoding="utf-8"))["order"]
        ahead = order.pop("ahead", None)
        return Order(**order, ahead=tuple(ahead) if ahead else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ArgumentError(
            argument="--order", got=f"{str(path)!r}: {problem}", wanted="a file that --witness wrote", fix="Write one."
        ) from problem


def _write_witness(path: Path, report: LaunchReport) -> None:
    """Write the shortest order that shows the report's first error, or else its first hazard."""
    from matmill.emulator import Order  # noqa: PLC0415 — see run
    from matmill.testing.report import spelled  # noqa: PLC0415 — see run

    shown = sorted(report.witnesses, key=lambda each: each[0].severity != "error")
    hazard, order = shown[0] if shown else ((report.hazards or ("nothing",))[0], Order())
    path.write_text(json.dumps({"order": spelled(order), "shows": str(hazard)}) + "\n", encoding="utf-8")


def _options(args: argparse.Namespace) -> list[str]:
    """Return NVRTC's options: definitions, the standard, and any other."""
    standard = [f"-std={args.std}"] if args.std else []
    return [*standard, *(f"-D{each}" for each in args.define), *args.option]


def _suppressions(path: Path | None) -> tuple[Suppression, ...]:
    from matmill.testing.suppressions import read  # noqa: PLC0415 — see run

    return read(path) if path is not None else ()


def _values(texts: Sequence[str], kernel: PtxKernel, file: Path, files: Files) -> list[Value | At | tuple[Value, ...]]:
    """Parse one ``--arg`` for each parameter of the kernel."""
    parameters = kernel.function.params
    if len(texts) != len(parameters):
        sources = [each.name or f"number {n}" for n, each in enumerate(kernel.unit.parameters)]
        names = sources if len(sources) == len(parameters) else [each.name for each in parameters]
        named = ", ".join(f"{name} ({p.size} B)" for name, p in zip(names, parameters, strict=True))
        raise ArgumentError(
            argument="--arg",
            got=f"{len(texts)} values",
            wanted=f"{len(parameters)}: {named}" if parameters else "none",
            fix=f"Give one --arg for each parameter of {kernel.unit.spelled}, in its order.\n{example(kernel, file)}",
        )
    return [
        parse_argument(text, index, parameter, files)
        for index, (text, parameter) in enumerate(zip(texts, parameters, strict=True))
    ]


def _named(values: Sequence[Value | At | tuple[Value, ...]]) -> dict[str, Value]:
    """Return the arguments by their numbers, and members of structs by numbers such as "2.1"."""
    named: dict[str, Value] = {}
    for index, each in enumerate(values):
        if isinstance(each, tuple):
            named |= {f"{index}.{n}": member for n, member in enumerate(each)}
        else:
            named[str(index)] = each if isinstance(each, np.generic | np.ndarray) else np.asarray(each.array)
    return named


def _files(outs: Sequence[str], arguments: dict[str, Value]) -> Files:
    """Parse the arguments' output files: which argument is written to which file after the run."""
    files: Files = {}
    arrays = [name for name, each in arguments.items() if isinstance(each, np.ndarray)]
    for text in outs:
        index, separator, name = text.partition("=")
        if not separator or not name or index not in arrays:
            raise ArgumentError(
                argument="--out",
                got=repr(text),
                wanted=f"INDEX=FILE.npy, where INDEX is an array argument: {', '.join(arrays) or 'there is none'}",
                fix="Arguments count from 0, in the order of --arg.",
            )
        writable(Path(name), "--out")
        files[Path(name)] = index
    return files


def _output(path: Path, name: str, each: Value) -> dict[str, Any]:
    array = np.asarray(each)
    index = int(name) if name.isdigit() else name
    return {"argument": index, "file": str(path), "dtype": str(array.dtype), "shape": list(array.shape)}
