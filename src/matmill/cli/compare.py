"""``matmill compare``: two kernels without a GPU, on the same arguments: what the second does better and worse."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from matmill.cli.console import output, show, show_json, table
from matmill.cli.emulate import add_launch_options, extent, launched, whole
from matmill.cli.options import Subparsers, writable
from matmill.errors import ArgumentError

if TYPE_CHECKING:
    from matmill.testing.comparison import Comparison
    from matmill.testing.report import LaunchReport

_STYLES = {"better": "green", "worse": "red"}


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="emulate two kernels on the same arguments, counters side by side",
        description="Runs a launch of each of two kernels in the emulator, of two files or of one, on equal arguments, "
        "and shows the counters that differ, the advice that went and came, and whether the results are equal.",
        epilog="Give --entry, --grid, --block and --shared twice where the two kernels differ in them. Exit codes: 0 "
        "no error and equal results, 1 errors or other results, 2 usage.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="PTX (.ptx) or CUDA C++ (.cu)")
    parser.add_argument("second", metavar="FILE", type=Path, nargs="?", help="the second kernel's (default: the same)")
    parser.add_argument("--entry", metavar="NAME", action="append", help="the kernel as C++ spells it")
    parser.add_argument("--grid", metavar="X[,Y,Z]", type=extent, action="append", help="blocks (default 1)")
    parser.add_argument("--block", metavar="X[,Y,Z]", type=extent, action="append", help="threads per block")
    parser.add_argument("--shared", metavar="BYTES", type=whole, action="append", help="dynamic shared memory")
    add_launch_options(parser)
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the comparison as a page into FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Emulate both and print the comparison. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    from matmill.testing.comparison import compared  # noqa: PLC0415 — other commands should not pay for it

    if args.html is not None:
        writable(args.html, "--html")
    comparison = compared(*(_launched(args, number) for number in range(2)))
    if args.html is not None:
        from matmill.page.comparison import page  # noqa: PLC0415 — see above

        args.html.write_text(page(comparison), encoding="utf-8")
    if args.json:
        show_json(comparison.as_dict())
    else:
        show(_shown(comparison, output().width))
    return 0 if comparison.ok else 1


def _launched(args: argparse.Namespace, number: int) -> tuple[LaunchReport, dict[str, Any]]:
    """Emulate the first or the second kernel. Returns the report and the arguments by name."""
    choice = {
        "file": args.second if number and args.second is not None else args.file,
        "entry": _chosen("--entry", args.entry or [None], number),
        "grid": _chosen("--grid", args.grid or [(1, 1, 1)], number),
        "block": _chosen("--block", args.block or [None], number),
        "shared": _chosen("--shared", args.shared or [0], number),
    }
    one = argparse.Namespace(**(vars(args) | choice | {"out": [], "expect": []}))
    report, named, _, _ = launched(one)
    return report, dict(named)


def _chosen(option: str, values: Sequence[Any], number: int) -> Any:
    """Return the value of an option for one of two kernels; a single one is for both."""
    if len(values) > 2:
        raise ArgumentError(
            argument=option, got=f"{len(values)} values", wanted="one, or one for each kernel", fix="Omit the others."
        )
    return values[min(number, len(values) - 1)]


def _shown(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    """Yield the comparison as text of ``width`` columns."""
    from matmill.testing.report import wrap  # noqa: PLC0415 — see run

    for name, report in (("A", comparison.first), ("B", comparison.second)):
        for line in report.brief():
            yield Text("\n".join(wrap(f"{name}: {line}", "", width)))
    rows = comparison.counters()
    if rows:
        cells = [
            [name, f"{first:,}", f"{second:,}", _ratio(first, second), f"[{_STYLES[kind]}]{kind}[/]" if kind else ""]
            for name, (first, second, kind) in rows.items()
        ]
        headings = [("what", "left"), ("A", "right"), ("B", "right"), ("B / A", "right"), ("", "left")]
        yield Text()
        yield table("Counts that differ", headings, cells)
    yield Text()
    for kind, advice in comparison.advice().items():
        for each in advice:
            yield Text("\n".join(wrap(f"{kind}: {each}", "", width)))
    for name, count in comparison.results.items():
        text = f"differs in {count:,} elements" if count else "is equal"
        yield Text(f"argument {name} {text}", style="bold red" if count else "")


def _ratio(first: int, second: int) -> str:
    return f"{second / first:.3g}x" if first else ""
