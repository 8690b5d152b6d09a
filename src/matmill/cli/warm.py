"""``matmill warm``: the kernels of a list of products, compiled before the first call, without a GPU."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeAlias

from matmill import arch as arches
from matmill.arch import Arch
from matmill.bench.progress import Progress
from matmill.choose import Choice, legal_among
from matmill.cli.console import progress
from matmill.cli.options import Subparsers, add_precision, size, writable
from matmill.cli.shapes import factors, product_stages
from matmill.cli.tune import LAYOUTS
from matmill.covering import covering
from matmill.dispatch.gemm import checked_options
from matmill.dispatch.validate import Options
from matmill.dtypes import ALL, DType, long_name
from matmill.errors import ArgumentError, CompileError, IllegalConfigError, ShapeError, unknown_name
from matmill.jit.compile import compile_source, is_cached
from matmill.jit.source import Source
from matmill.lowering import SubProblem
from matmill.plan import prepare, ready
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from matmill.settings import cache_dir

_FORMS = "M N K, MxNxK, BxMxNxK with a batch, or the shapes of a and b, as 64x1000x17 17x400T"

#: Products whose covering sets are compiled without a list: few rows to many of usual layers, and batches.
_USUAL = (
    *(f"{m} {n} {k}" for m in (1, 4, 16, 64, 128, 512, 2048, 8192) for n in (1024, 4096) for k in (64, 512, 4096)),
    *(f"{batch}x{m}x{n}x{k}" for batch in (32, 1024) for m, n, k in ((64, 64, 64), (128, 128, 64), (128, 64, 128))),
)

Unit: TypeAlias = tuple[Source, str]  # with the target that it is compiled for


class Kind(NamedTuple):
    """One combination of the options, for every product: a GPU, an element type, the way of summing, and a layout."""

    arch: Arch
    dtype: DType
    options: Options
    layout: str


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "warm",
        help="compile the kernels of a list of products, for images and CI",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compile what calls of matmul and inner would compile at their first run, and keep it in the\n"
        "folder that `matmill cache` names. Needs no GPU.",
        epilog="Without --for it is the covering set: every kernel that aligned products of usual sizes may take,\n"
        f"without an addend, a bias or an activation.\n\nA product a line: {_FORMS}.\n"
        "A T at the end is a transposed view, as for `matmill why`. A # begins "
        "a comment.\n\n  echo '4096 4096 4096' | matmill warm --for - --arch h200 --dtype bf16,f32\n"
        "  matmill warm --for shapes.txt --arch a100,h100 --dtype bf16 --layout nn,nt",
    )
    add = parser.add_argument
    add("--for", dest="file", metavar="FILE", help="the products, one a line; - reads them from standard input")
    add("--arch", default=arches.DEFAULT, metavar="A,B", help=f"for which GPUs (default: {arches.DEFAULT})")
    add("--dtype", default="float32", metavar="A,B", help=f"element types, of {', '.join(ALL)} (default: float32)")
    add("--layout", default="nn", metavar="A,B", help="of A and B in M N K: n by rows, t by columns (default: nn)")
    add_precision(parser)
    add("--out-dtype", metavar="TYPE", help="element type of the results, float32 for 16-bit factors")
    add("--jobs", type=size, metavar="N", help="compile so many kernels at once (default: one for each core)")


def run(args: argparse.Namespace) -> int:
    """Compile what the cache lacks and print one line. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    start = time.perf_counter()
    kinds, lines, folder = list(_kinds(args)), _lines(args.file), _folder()
    with progress() as report:
        units = _units(lines, kinds, report, every=args.file is None)
        missing = [unit for unit in units if not is_cached(*unit)]
        failures = _compile(missing, args.jobs or len(os.sched_getaffinity(0)), report)
    for failure in failures:
        sys.stderr.write(f"matmill: {failure}\n")
    counts = f"{len(lines) * len(kinds)} products, {len(units)} kernels"
    done = f"{len(missing) - len(failures)} compiled now, {len(units) - len(missing)} were there"
    failed = f", {len(failures)} failed" if failures else ""
    sys.stdout.write(f"{counts}: {done}{failed}; {time.perf_counter() - start:.1f} s; {folder}\n")
    return 1 if failures else 0


def _kinds(args: argparse.Namespace) -> Iterator[Kind]:
    """Yield every combination of the options. Raises the errors of names that are in no table."""
    layouts = args.layout.split(",")
    for layout in layouts:
        if layout not in LAYOUTS:
            raise unknown_name("--layout", layout, LAYOUTS)
    for name, text in product(args.arch.split(","), args.dtype.split(",")):
        arch, dtype = arches.get(name, "--arch"), ALL[long_name(text, ALL)]
        options = checked_options(None, args.out_dtype, args.precision, dtype, batch_invariant=args.batch_invariant)
        yield from (Kind(arch, dtype, options, layout) for layout in layouts)


def _lines(file: str | None) -> list[tuple[str, str]]:
    """Read the products of a file, or of standard input for ``-``, each with its line for messages; else usual ones."""
    if file is None:
        return [("usual products", text) for text in _USUAL]
    text, got = "", f"{file!r} without a product"
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        got = f"{file!r} ({error})"
    words = (line.partition("#")[0].strip() for line in text.splitlines())
    lines = [(f"--for {file}, line {number}", text) for number, text in enumerate(words, 1) if text]
    if not lines:
        fix = "Write for instance '4096 4096 4096' to a file, or see `matmill warm --help`."
        raise ArgumentError(argument="--for", got=got, wanted="a file with a product a line, or -", fix=fix)
    return lines


def _folder() -> Path:
    """Return the cache's folder, in which files can be written. Raises ``OSError`` if it cannot be made."""
    folder = cache_dir()
    if folder is None:
        wanted = "a cache, in which compiled kernels are kept"
        raise ArgumentError(argument="MATMILL_CACHE", got="off", wanted=wanted, fix="Unset it.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    writable(folder / "kernel", "MATMILL_CACHE_DIR")
    return folder


def _units(lines: Sequence[tuple[str, str]], kinds: Sequence[Kind], report: Progress, *, every: bool) -> list[Unit]:
    """Return what all products compile, each source once for a target: ``every`` kernel of their covering sets, or one.

    What no kernel takes is then passed over.
    """
    units: dict[Unit, None] = {}
    for number, ((line, text), kind) in enumerate(product(lines, kinds)):
        report("choosing kernels", number, len(lines) * len(kinds))
        try:
            stages = product_stages(*factors(*_shapes(text, kind.layout), kind.dtype), kind.options)
            if every:
                units.update(dict.fromkeys(_covering_units(stages, kind.arch)))
                continue
            plan = prepare(stages, kind.arch)
        except (ArgumentError, ShapeError, IllegalConfigError) as error:
            fix = f"{error.argument}: got {error.got}; wanted {error.wanted}."
            raise ArgumentError(argument=line, got=repr(text), wanted=f"a product: {_FORMS}", fix=fix) from error
        units.update(dict.fromkeys((source, ready.target) for ready in plan for source in ready.sources))
    return list(units)


def _covering_units(stages: Sequence[SubProblem[Gemm]], arch: Arch) -> Iterator[Unit]:
    """Yield what the covering set of a product compiles, or without a set the choice's kernel."""
    for stage in stages:
        tiles = covering(stage.problem, arch)
        for kernel in legal_among(PRODUCTION, stage.problem, arch, tiles) if tiles else ():
            member = ready(stage, Choice(kernel, 0.0), arch)
            yield from ((source, member.target) for source in member.sources)


def _shapes(text: str, layout: str) -> tuple[str, str]:
    """Return the shapes of a and b. Those that a line names have layouts of their own."""
    parts = text.split()
    if len(parts) == 2 and "x" in text:
        return parts[0], parts[1]
    extents = parts if len(parts) > 1 else text.split("x")
    if len(extents) != 3 and (len(extents), len(parts)) != (4, 1):
        raise ArgumentError(argument="extents", got=str(len(extents)), wanted="m, n and k", fix="See --help.")
    *batch, m, n, k = extents
    a, b = ("T" if order == "t" else "" for order in layout)
    return "x".join((*batch, m, k)) + a, "x".join((*batch, k, n)) + b


def _compile(units: Sequence[Unit], jobs: int, report: Progress) -> list[str]:
    """Compile into the cache, ``jobs`` at once, and return what failed. NVRTC lets other threads run meanwhile."""
    failures: list[str] = []
    pool = ThreadPoolExecutor(jobs)
    try:
        for done, future in enumerate(as_completed([pool.submit(_failure, *unit) for unit in units]), 1):
            failures += filter(None, [future.result()])
            report("compiling", done, len(units))
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt no further one begins
    return failures


def _failure(source: Source, target: str) -> str | None:
    """Compile one source; return why it is not in the cache, or None."""
    try:
        compile_source(source, target)
    except CompileError as error:
        return str(error)
    return None if is_cached(source, target) else f"{source.kernel}: compiled for {target}, but not kept. Disk full?"
