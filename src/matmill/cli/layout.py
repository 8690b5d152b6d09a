"""``matmill layout``: the layout of a matrix in the 32 banks of shared memory, and the cost of a warp's access."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill.analysis.swizzle import (
    ACCESSES,
    BANKS,
    VECTOR_BYTES,
    AccessCost,
    SharedLayout,
    cost,
    search,
    smallest_pad,
    touched,
    words,
)
from matmill.analysis.swizzle import layout as layout_of
from matmill.bench.plots.layout import draw, first_line, line_name
from matmill.cli.console import answer, output
from matmill.cli.options import Subparsers, plot_file
from matmill.dtypes import ELEMENTWISE, SHORT, long_name
from matmill.errors import ArgumentError, unknown_name

#: Lines of 128 bytes that the terminal shows.
LINES = 32
#: Colours of eight consecutive pieces of 16 bytes, which make a swizzle visible as a pattern.
_COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_blue")


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    lanes = "; ".join(f"{name}: {meaning}" for name, meaning in ACCESSES.items())
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "layout",
        help="the layout of a matrix in the banks of shared memory, and the wavefronts of an access to it",
        description="Show which elements of a row-major, padded or swizzled matrix each of the 32 banks of shared "
        "memory holds, and how many wavefronts a warp's access takes. Needs no GPU.",
        epilog=f"Accesses. {lanes}.",
    )
    add = parser.add_argument
    add("--shape", required=True, metavar="RxC", help="rows and columns of the matrix, for instance 64x64")
    add("--dtype", default="f16", help=f"one of {', '.join(SHORT)} (default: f16)")
    add("--access", default="ldmatrix", metavar="|".join(ACCESSES), help="how a warp reads it (default: ldmatrix)")
    add(
        "--swizzle",
        metavar="B,M,S|pad:N|none|128B|64B|32B",
        help="bits, base and shift in elements, as CuTe's Swizzle; padding in elements per row; or a hardware mode "
        "(default: none)",
    )
    add("--search", action="store_true", help="find the smallest swizzle without conflicts, and the least padding")
    add("--plot", metavar="FILE", help="draw the layout beside the plain one into FILE (.svg or .png)")
    add("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Show one layout: the named one or, with ``--search`` alone, the result of the search."""
    plot = plot_file(args.plot)
    rows, columns = _shape(args.shape)
    dtype = ELEMENTWISE[long_name(args.dtype)]
    access = args.access
    if access not in ACCESSES:
        raise unknown_name("--access", access, ACCESSES)
    plain = layout_of(rows, columns, dtype)
    layout = layout_of(rows, columns, dtype, args.swizzle or "none", "--swizzle")
    record: dict[str, Any] = {}
    if args.search:
        best, pad = search(rows, columns, dtype, access), smallest_pad(rows, columns, dtype, access)
        record["search"] = {
            "swizzle": None if best is None else str(best.swizzle),
            "pad": None if pad is None else pad.pad,
        }
        if args.swizzle is None and best is not None:
            layout = best
    priced = cost(layout, access)
    record = _record(layout, access, priced) | record
    drawn = [plain] if layout == plain else [plain, layout]
    parts = _report(layout, access, priced, record)
    answer(record, parts, as_json=args.json, plot=plot, draw=partial(draw, drawn, access))
    return 0


def _shape(text: str) -> tuple[int, int]:
    """Return rows and columns.

    >>> _shape("64x32")
    (64, 32)
    """
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", text.lower())
    if match is None or "0" in (match[1].strip("0") or "0", match[2].strip("0") or "0"):
        raise ArgumentError(
            argument="--shape", got=repr(text), wanted="rows and columns, each 1 or more", fix="Write 64x64."
        )
    return int(match[1]), int(match[2])


def _record(layout: SharedLayout, access: str, priced: AccessCost) -> dict[str, Any]:
    worst = priced.worst
    swizzle = layout.swizzle
    return {
        "shape": [layout.rows, layout.columns],
        "dtype": layout.dtype.name,
        "access": access,
        "lanes": ACCESSES[access],
        "layout": layout.name,
        "swizzle": {"bits": swizzle.bits, "base": swizzle.base, "shift": swizzle.shift},
        "pad": layout.pad,
        "panel": layout.panel or None,
        "bytes": layout.bytes,
        "wavefronts_ideal": int(priced.ideal[worst]),
        "wavefronts_actual": int(priced.actual[worst]),
        "requests": len(priced.actual),
        "requests_conflicting": int((priced.actual > priced.ideal).sum()),
        "total_wavefronts_ideal": int(priced.ideal.sum()),
        "total_wavefronts_actual": int(priced.actual.sum()),
    }


def _report(layout: SharedLayout, access: str, priced: AccessCost, record: dict[str, Any]) -> Iterable[RenderableType]:
    """Yield the picture and the figures below it."""
    title = f"{layout.rows}x{layout.columns} {layout.dtype.name}, {layout.name}, {layout.bytes} bytes of shared memory"
    yield Text(title, style="bold")
    yield from _picture(layout, access, priced.worst)
    yield Text()
    yield Text(f"{access}: {ACCESSES[access]}")
    actual, ideal = record["wavefronts_actual"], record["wavefronts_ideal"]
    verdict = "no conflicts" if actual == ideal else f"{actual / ideal:.3g} times the ideal"
    yield Text(f"one access: {actual} wavefront{'s' * (actual > 1)}, ideal {ideal}: {verdict}")
    yield Text(
        f"all {record['requests']} accesses: {record['total_wavefronts_actual']} wavefronts, "
        f"ideal {record['total_wavefronts_ideal']}; {record['requests_conflicting']} of them conflict"
    )
    if "search" in record:
        yield Text(_search_result(record["search"]))


def _search_result(findings: dict[str, Any]) -> str:
    """Format the result of the search."""
    swizzle, pad = findings["swizzle"], findings["pad"]
    if swizzle == "0,0,0":
        return "search: the plain layout has no conflicts"
    first = "no swizzle of up to five bits is free of conflicts" if swizzle is None else f"smallest swizzle {swizzle}"
    return f"search: {first}; {'no padding is' if pad is None else f'least padding pad:{pad}'}"


def _picture(layout: SharedLayout, access: str, index: int) -> Iterable[Text]:
    """Yield lines of 128 bytes: the column of the first element in each word.

    Words of the access are in reverse video, or starred.
    """
    rows, columns = words(layout)
    wanted = touched(layout, access, index)
    lines = min(LINES, len(rows))
    start = first_line(wanted, lines)
    marks = not output().is_terminal  # without reverse video
    width = 3 if marks else 2
    names = [line_name(rows[line]) for line in range(start, start + lines)]
    margin = max(map(len, names)) + 1
    piece = max(1, VECTOR_BYTES // layout.dtype.itemsize)
    head = "".join(f"{bank:<{4 * width}}" for bank in range(0, BANKS, 4))
    yield Text(f"{'bank':<{margin}}{' ' * marks}{head}".rstrip())
    for name, held, target in zip(names, columns[start:], wanted[start:], strict=False):
        line = Text(f"{name:<{margin}}")
        for column, on in zip(held.tolist(), target.tolist(), strict=True):
            star = ("*" if on else " ") if marks else ""
            style = "" if column < 0 else _COLOURS[column // piece % len(_COLOURS)] + (" reverse" if on else "")
            line.append(f"{star}{'··' if column < 0 else f'{column % 100:02d}'}", style=style)
        yield line
    counts = "".join(f"{count:>{width}}" for count in wanted.sum(axis=0).tolist())
    yield Text(f"{'words':<{margin}}{counts}")
    if len(rows) > lines:
        yield Text(f"{lines} of {len(rows)} lines of 128 bytes")
    how = "starred" if marks else "reversed"
    yield Text(
        f"Each cell: the column (mod 100) of a bank's word; {how}: one access; words: how many it wants per bank"
    )
