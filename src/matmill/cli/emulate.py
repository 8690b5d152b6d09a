"""``matmill emulate``: anybody's kernel without a GPU, with its counts, its memory traffic by line and its hazards."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from matmill.cli.console import show, show_json, table
from matmill.cli.emulate_arguments import FORMS, Given, GivenStruct, given
from matmill.cli.files import save
from matmill.cli.options import Subparsers, writable
from matmill.errors import ArgumentError

if TYPE_CHECKING:
    from matmill.emulator import Hazard, Memory, Module, Report
    from matmill.launch import Launch, Pointer, Struct

_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
_LOCATION = re.compile(r"\((PTX line \d+|[^()\s]+:\d+)\)")
_CODE_WIDTH = 60
_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
# Columns of the table by line: heading, and the counts that it is made of.
_TRAFFIC = (
    ("global loads", "global_load_requests", "global_load_sectors"),
    ("stores", "global_store_requests", "global_store_sectors"),
    ("cp.async", "cp_async_global_requests", "cp_async_sectors"),
    ("shared loads", "shared_load_wavefronts_ideal", "shared_load_wavefronts"),
    ("stores", "shared_store_wavefronts_ideal", "shared_store_wavefronts"),
)
# Columns for kernels that have bulk copies.
_BULK = (("bulk loads", "bulk_loads", "bulk_load_sectors"), ("stores", "bulk_stores", "bulk_store_sectors"))


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "emulate",
        help="run any CUDA C++ or PTX kernel without a GPU",
        description="Runs one launch of a kernel in the emulator and reports counts, memory traffic by source line, "
        "and hazards: races, accesses out of bounds, reads of uninitialised shared memory, missing waits, deadlocks.",
        epilog="Exit codes: 0 no error, 1 errors (with --strict any hazard), 2 usage. Negative numbers: --arg=-5.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="PTX (.ptx) or CUDA C++ (.cu)")
    parser.add_argument("--entry", metavar="NAME", help="the kernel (default: the only one)")
    parser.add_argument("--grid", metavar="X[,Y,Z]", type=_extent, default=(1, 1, 1), help="blocks (default 1)")
    parser.add_argument("--block", metavar="X[,Y,Z]", type=_extent, required=True, help="threads per block")
    parser.add_argument("--shared", metavar="BYTES", type=_bytes, default=0, help="dynamic shared memory (default 0)")
    parser.add_argument("--arg", metavar="VALUE", action="append", default=[], help=f"in the kernel's order: {FORMS}")
    parser.add_argument(
        "--out",
        metavar="INDEX=FILE.npy",
        action="append",
        default=[],
        help="write array argument INDEX (the first is 0; 2.1 is a member of a struct) to a file after the run",
    )
    parser.add_argument("--target", metavar="SM", default="sm_90a", help="what to compile .cu for (default sm_90a)")
    parser.add_argument(
        "--include", metavar="DIR", type=Path, action="append", default=[], help="where else headers of .cu files are"
    )
    parser.add_argument(
        "--late-copies", action="store_true", help="let asynchronous copies and wgmma act no earlier than waits demand"
    )
    parser.add_argument("--schedule", metavar="SEED", type=_bytes, default=0, help="another order of warps (default 0)")
    parser.add_argument(
        "--cluster", metavar="X[,Y,Z]", type=_extent, default=(1, 1, 1), help="blocks per cluster (default 1)"
    )
    parser.add_argument("--pdl", action="store_true", help="a launch that must wait for the one before it")
    parser.add_argument(
        "--initcheck", action="store_true", help="report reads of out:FILE:TYPE:SHAPE arrays before anything is stored"
    )
    parser.add_argument("--no-races", action="store_true", help="do not look for races: about 3 times as fast")
    parser.add_argument("--strict", action="store_true", help="let warnings and notes fail too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _extent(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) > 3 or not all(part.isdigit() and int(part) for part in parts):
        message = f"got {text!r}; wanted one to three positive whole numbers, for instance 16,16"
        raise argparse.ArgumentTypeError(message)
    x, y, z = (*(int(part) for part in parts), *(1 for _ in range(3 - len(parts))))
    return x, y, z


def _bytes(text: str) -> int:
    if not text.isdigit():
        message = f"got {text!r}; wanted a whole number, zero or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Emulates, writes files, prints the report. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.emulator import KernelFault, Memory, parse  # noqa: PLC0415 — other commands should not pay for these
    from matmill.emulator import run as emulate  # noqa: PLC0415 — the same
    from matmill.launch import Launch  # noqa: PLC0415 — the same

    module = parse(_ptx(args))
    entry = _entry(args.entry, module)
    values = _values(args.arg, entry, module)
    named = _named(values)
    files = _files(args.out, named)
    memory = Memory()
    bind = partial(_bound, memory, initcheck=args.initcheck)
    arguments: tuple[Any, ...] = tuple(_argument(bind, index, each) for index, each in enumerate(values))
    launch = Launch(entry, entry, args.grid, args.block, arguments, args.shared, pdl=args.pdl, cluster=args.cluster)
    report: Report | None = None
    try:
        report = emulate(
            module,
            launch,
            memory,
            races=not args.no_races,
            late_copies=args.late_copies,
            schedule=args.schedule,
        )
        hazards: Sequence[Hazard] = report.hazards
    except KernelFault as fault:
        hazards = (*fault.earlier, fault.hazard)
    else:
        for path, name in files.items():
            save(path, np.asarray(named[name].value))
    outputs = [_output(path, name, named[name]) for path, name in files.items()] if report is not None else []
    failed = any(args.strict or hazard.severity == "error" for hazard in hazards)
    if args.json:
        show_json({"ok": not failed} | _record(launch, report, hazards, outputs))
    else:
        show(_shown(args.file, launch, report, hazards, outputs))
    return 1 if failed else 0


def _ptx(args: argparse.Namespace) -> str:
    """The PTX of the file named."""
    suffix = args.file.suffix.lower()
    if suffix not in {".ptx", ".cu"}:
        raise ArgumentError(
            argument="FILE", got=f"{str(args.file)!r}", wanted="a file ending in .ptx or .cu", fix="Rename it."
        )
    try:
        text = args.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "no text in UTF-8"
        raise ArgumentError(
            argument="FILE", got=f"{str(args.file)!r}: {reason}", wanted="a text file", fix="Check the name."
        ) from problem
    if suffix == ".ptx":
        return str(text)
    from matmill.jit.compile import compile_ptx  # noqa: PLC0415 — PTX needs no compiler
    from matmill.jit.source import Source  # noqa: PLC0415 — the same

    headers: dict[str, str] = {}
    _gather(text, (args.file.parent, *args.include), headers)
    # The compiler names the file after the entry; messages should name the one that the user has open.
    named = f'#line 1 "{args.file.name}"\n{text}'
    source = Source(args.file.name, args.entry or args.file.stem, named, tuple(sorted(headers.items())))
    return compile_ptx(source, args.target)


def _gather(text: str, folders: Iterable[Path], headers: dict[str, str]) -> None:
    """Adds to ``headers`` all that ``text`` includes from ``folders``; of what is not there the compiler will tell."""
    for name in _INCLUDE.findall(text):
        found = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if name not in headers and found is not None:
            headers[name] = found.read_text(encoding="utf-8", errors="replace")
            _gather(headers[name], (found.parent, *folders), headers)


def _entry(name: str | None, module: Module) -> str:
    """The kernel to run."""
    entries = list(module.entries)
    if name in entries or (name is None and len(entries) == 1):
        return name or entries[0]
    raise ArgumentError(
        argument="--entry",
        got=repr(name) if name else "nothing",
        wanted=f"one of {', '.join(entries)}" if entries else "a file with a kernel",
        fix='Declare the kernel extern "C" so that its name is not mangled.',
    )


def _values(texts: Sequence[str], entry: str, module: Module) -> list[Given | GivenStruct]:
    parameters = module.entries[entry].params
    if len(texts) != len(parameters):
        named = ", ".join(f"{p.name} ({p.size} B)" for p in parameters)
        raise ArgumentError(
            argument="--arg",
            got=f"{len(texts)} values",
            wanted=f"{len(parameters)}: {named}" if parameters else "none",
            fix=f"Give one --arg for each parameter of {entry}, in its order.",
        )
    return [
        given(text, index, parameter) for index, (text, parameter) in enumerate(zip(texts, parameters, strict=True))
    ]


def _argument(
    bind: Callable[[str, Given], Pointer | np.generic], index: int, each: Given | GivenStruct
) -> Pointer | np.generic | Struct:
    """An argument as the launch takes it: arrays bound to addresses, structs made of their members."""
    if isinstance(each, Given):
        return bind(str(index), each)
    members = [bind(f"{index}.{n}", member) for n, member in enumerate(each.members)]
    from matmill.launch import Struct  # noqa: PLC0415 — the same

    return Struct.of(*members)


def _bound(memory: Memory, name: str, each: Given, *, initcheck: bool) -> Pointer | np.generic:
    if not isinstance(each.value, np.ndarray):
        return each.value
    initialised = each.initialised or not initcheck
    return memory.bind(f"argument {name}", each.value, access="rw" if each.writable else "r", initialised=initialised)


def _named(values: Sequence[Given | GivenStruct]) -> dict[str, Given]:
    """Arguments by their numbers, members of structs as in "2.1"."""
    found: dict[str, Given] = {}
    for index, each in enumerate(values):
        if isinstance(each, Given):
            found[str(index)] = each
        else:
            found |= {f"{index}.{n}": member for n, member in enumerate(each.members)}
    return found


def _files(outs: Sequence[str], arguments: dict[str, Given]) -> dict[Path, str]:
    """Which argument goes into each file after the run."""
    files = {each.file: name for name, each in arguments.items() if each.file is not None}
    arrays = [name for name, each in arguments.items() if isinstance(each.value, np.ndarray)]
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


def _output(path: Path, name: str, each: Given) -> dict[str, Any]:
    array = np.asarray(each.value)
    index = int(name) if name.isdigit() else name
    return {"argument": index, "file": str(path), "dtype": str(array.dtype), "shape": list(array.shape)}


def _record(
    launch: Launch, report: Report | None, hazards: Sequence[Hazard], outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    """The JSON document but for "ok". After a fault there are no counts."""
    lines = report.by_line if report is not None else {}
    return {
        "kernel": launch.entry,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.dynamic_shared,
        "counters": report.counters.as_dict() if report is not None else {},
        "hazards": [
            {
                "severity": h.severity,
                "kind": h.kind,
                "where": h.where,
                "message": h.message,
                "instruction": h.instruction,
            }
            for h in hazards
        ],
        "by_line": {location: _counted(vars(counts)) for location, counts in lines.items()},
        "outputs": outputs,
    }


def _counted(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _shown(
    file: Path, launch: Launch, report: Report | None, hazards: Sequence[Hazard], outputs: list[dict[str, Any]]
) -> Iterator[RenderableType]:
    """The report for people."""
    yield Text(f"{launch}: {_verdict(hazards)}")
    source = _lines(file)
    yield from _shown_hazards(hazards, source)
    if report is not None:
        yield from _shown_counts(report, source)
    for output in outputs:
        shape = "x".join(map(str, output["shape"]))
        yield Text(f"argument {output['argument']} ({output['dtype']} {shape}) is in {output['file']}")


def _verdict(hazards: Sequence[Hazard]) -> str:
    """How many hazards of each severity there are: "2 errors, 1 note"."""
    counts = {each: sum(hazard.severity == each for hazard in hazards) for each in _STYLES}
    said = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    return ", ".join(said) or "no hazards"


def _shown_hazards(hazards: Sequence[Hazard], source: dict[str, str]) -> Iterator[RenderableType]:
    """Hazards with their source lines, those of one pair of lines together: unrolled loops have one in each round."""
    alike: dict[tuple[str, tuple[str, ...]], list[Hazard]] = {}
    for hazard in hazards:
        locations = tuple(dict.fromkeys([hazard.where, *_LOCATION.findall(hazard.message)]))
        alike.setdefault((hazard.kind, locations), []).append(hazard)
    for (_, locations), group in alike.items():
        yield Text()
        yield Text(str(group[0]), style=_STYLES[group[0].severity])
        if len(group) > 1:
            yield Text(f"  and {len(group) - 1} more in copies of the same lines")
        for location in locations:
            if location in source:
                yield Text(f"  {location}  {source[location]}")


def _shown_counts(report: Report, source: dict[str, str]) -> Iterator[RenderableType]:
    """All counts that are not 0, then the memory traffic of each line."""
    counts = _counted(report.counters.as_dict())
    yield Text()
    yield table("Counts", [("what", "left"), ("count", "right")], [[n, f"{count:,}"] for n, count in counts.items()])
    bulk = [column for column in _BULK if column[1] in counts]
    rows, columns = [], (*_TRAFFIC, *bulk)
    for location, line in sorted(report.by_line.items(), key=lambda item: _by_number(item[0])):
        pairs = [(getattr(line, first), getattr(line, second)) for _, first, second in columns]
        if any(first or second for first, second in pairs) or line.atomics:
            cells = [f"{first:,} : {second:,}" if first or second else "" for first, second in pairs]
            rows.append(
                [location, *cells, f"{line.atomics:,}" if line.atomics else "", escape(source.get(location, ""))]
            )
    if rows:
        yield Text()
        headings = [("line", "left"), *((name, "right") for name, *_ in columns), ("atomics", "right"), ("", "left")]
        yield table("Memory traffic by line", headings, rows)
        copies = "cp.async, bulk" if bulk else "cp.async"
        yield Text(f"global, {copies}: requests : 32-byte sectors; shared: fewest wavefronts possible : wavefronts")


def _lines(file: Path) -> dict[str, str]:
    """The lines of the file by location, shortened."""
    location = "PTX line {}" if file.suffix.lower() == ".ptx" else f"{file.name}:{{}}"
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    short = (line if len(line) <= _CODE_WIDTH else line[: _CODE_WIDTH - 1] + "…" for line in lines)
    return {location.format(number): line for number, line in enumerate(short, 1)}


def _by_number(location: str) -> tuple[str, int]:
    """What sorts "k.cu:9" before "k.cu:10"."""
    number = re.search(r"\d+$", location)
    return (location[: number.start()], int(number[0])) if number else (location, 0)
