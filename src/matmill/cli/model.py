"""``matmill model``: a cost model's predictions for every launch it may choose, and its choice.

``phvm`` is the paper's model of its inner-product kernel, ``gemm`` are those of products on FMA units, or on tensor
cores for elements of 16 bits, ``scale`` (:mod:`matmill.cli.model_scale`) the one of a product on many GPUs. None needs
a GPU.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from math import gcd
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill import arch as arches
from matmill.analysis import phvm as phvm_cost
from matmill.analysis.candidates import label, waves
from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.plots.gemm_model import Bar
from matmill.bench.plots.gemm_model import draw as draw_tiles
from matmill.bench.plots.phvm import Curve, draw_curve, read_measured
from matmill.choose import choose_from
from matmill.cli.console import answer, table
from matmill.cli.model_scale import add_scale, run_scale
from matmill.cli.options import Subparsers, plot_file, size
from matmill.config import Config
from matmill.dtypes import ALL, DType, long_name
from matmill.errors import ArgumentError, unknown_name
from matmill.kernel import Production
from matmill.kernels import hgemm, wgmma
from matmill.kernels.gemm import GEMM, space
from matmill.kernels.gemm import cost as gemm_cost
from matmill.kernels.shared.model import PRICES
from matmill.kernels.shared.tiled import tile_count
from matmill.problem import Gemm

#: The arch of the paper that is still widely used.
PHVM_ARCH = "a100"

#: The kernels for elements of 16 bits, and the most rows that a table shows of their many tile shapes.
_TENSOR_CORES, _MOST_ROWS = (hgemm.PRODUCTION, wgmma.PRODUCTION), 24
#: The most columns of a tile shape in the table.
_TILE_WIDTH = 24
#: The kernel for all products that it takes, including those for which ``choose`` prefers others.
_GEMM = Production(GEMM, space, gemm_cost.explain)


def add_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of the command and of each model."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "model",
        help="what a cost model predicts for every choice it has, and why it takes the one it does",
        description="Show a cost model's predictions. Needs no GPU.",
    )
    models = parser.add_subparsers(dest="model", metavar="MODEL", required=True)
    _add_phvm(models)
    _add_gemm(models)
    add_scale(models)


def run(args: argparse.Namespace) -> int:
    """Show the model that the arguments select."""
    return {"phvm": _run_phvm, "gemm": _run_gemm, "scale": run_scale}[args.model](args)


def _add_phvm(models: Subparsers) -> None:
    add = models.add_parser(
        "phvm",
        help="the paper's model of PHVM: cycles for every feasible GS and BS",
        description="Cycles that the model of Lei, Liu and Song predicts for E (m, k) @ F (k, n) over GS blocks of BS "
        "threads, for every feasible pair.",
    ).add_argument
    add("--m", type=size, required=True, help="rows of E")
    add("--n", type=size, help="columns of F (default: m)")
    add("--k", type=size, required=True, help="columns of E, rows of F, for instance 3e7")
    known = ", ".join(phvm_cost.PARAMETERS)
    add("--arch", default=PHVM_ARCH, help=f"{known}, or a GPU that `matmill probe` measured (default: {PHVM_ARCH})")
    add("--utilization", type=float, metavar="U", help="u_SM (default: the paper's; 1 for a GPU that was probed)")
    readings = "|".join(phvm_cost.READINGS)
    add("--reading", default="corrected", metavar=readings, help="which equations (default: corrected)")
    add("--measured", type=Path, metavar="FILE", help='measured times: a JSON list of {"GS", "BS", "seconds"}')
    add("--json", action="store_true", help="print one JSON document")
    add("--plot", metavar="FILE", help="draw both readings, and what was measured, over GS (.png or .svg)")


def _add_gemm(models: Subparsers) -> None:
    add = models.add_parser(
        "gemm",
        help="the model that picks the tile shape of a product, term by term",
        description="What the model predicts for every tile shape of the production kernel of A (m, k) @ B (k, n), "
        "packed row-major, and which it picks: on FMA units for float32 and float64, on tensor cores for 16 bits.",
    ).add_argument
    add("--n", type=size, required=True, help="columns of B and, where they are not given, m and k")
    add("--m", type=size, help="rows of A (default: n)")
    add("--k", type=size, help="columns of A, rows of B (default: n)")
    add("--dtype", default="float32", help=f"one of {', '.join(ALL)} (default: float32)")
    add("--arch", default=arches.DEFAULT, help=f"for which GPU (default: {arches.DEFAULT})")
    add("--json", action="store_true", help="print one JSON document")
    add("--plot", metavar="FILE", help="draw the predicted times of the tile shapes (.png or .svg)")


def _run_phvm(args: argparse.Namespace) -> int:
    arch = arches.get(args.arch, "--arch")
    parameters = _phvm_parameters(arch, args.utilization)
    if args.reading not in phvm_cost.READINGS:
        raise unknown_name("--reading", args.reading, phvm_cost.READINGS)
    plot = plot_file(args.plot)
    measured = {} if args.measured is None else read_measured(args.measured)
    m, n, k = args.m, args.n or args.m, args.k
    readings = {name: phvm_cost.predictions(parameters, m, n, k, name) for name in phvm_cost.READINGS}
    best = phvm_cost.best(parameters, m, n, k, args.reading)
    rows = [
        {
            "GS": point.gs,
            "BS": point.bs,
            "cycles": point.cycles,
            "seconds": point.cycles / arch.boost_hz,
            "t_pre": point.t_pre,
            "t_post": point.t_post,
            "case": point.case,
            "measured_seconds": measured.get((point.gs, point.bs)),
        }
        for point in readings[args.reading]
    ]
    record = {
        "model": "phvm",
        "arch": arch.name,
        "reading": args.reading,
        "problem": {"m": m, "n": n, "k": k},
        "best": {"GS": best.gs, "BS": best.bs},
        "rows": rows,
    }
    title = f"PHVM, m={m} n={n} k={k} float32, {arch.title}"
    answer(
        record,
        _phvm_report(record, arch, measured),
        as_json=args.json,
        plot=plot,
        draw=lambda path: draw_curve(path, title, arch, readings, measured),
    )
    return 0


def _phvm_parameters(arch: Arch, utilization: float | None) -> phvm_cost.PhvmParameters:
    """Return the paper's parameters if it has some, else those that a probe measured.

    ``utilization`` replaces u_SM.
    """
    device = None if arch.name in phvm_cost.PARAMETERS else arches.measured(arch)
    if device is not None:
        return phvm_cost.of_measured(arch, device, 1.0 if utilization is None else utilization)
    parameters = phvm_cost.parameters(arch.name, "--arch")
    return parameters if utilization is None else phvm_cost.with_utilization(parameters, utilization)


def _phvm_report(record: dict[str, Any], arch: Arch, measured: Curve) -> Iterable[RenderableType]:
    """Yield the table of launches and the remarks on it."""
    p, best = record["problem"], record["best"]
    least = min(row["cycles"] for row in record["rows"])
    columns = [(name, "right") for name in ("GS", "BS", "cycles", "time", "above least", "case")]
    columns += [("measured", "right")] * bool(measured) + [("", "left")]
    rows = [
        [
            str(row["GS"]),
            str(row["BS"]),
            f"{row['cycles']:.0f}",
            units.seconds(row["seconds"]),
            f"{100 * (row['cycles'] / least - 1):.3f}%",
            str(row["case"]),
            *([_or_dash(row["measured_seconds"])] if measured else []),
            "<- optimum" if (row["GS"], row["BS"]) == (best["GS"], best["BS"]) else "",
        ]
        for row in record["rows"]
    ]
    yield table(f"phvm, {record['reading']}: m={p['m']} n={p['n']} k={p['k']} float32, {arch.title}", columns, rows)
    yield Text()
    yield Text(f"Times at {arch.boost_hz / 1e9:.4g} GHz.")
    moved = phvm_cost.traffic(p["m"], p["n"], p["k"])
    floor = moved / arch.dram_bytes_per_s
    yield Text(
        f"PHVM reads {units.quantity(moved, 'B')}, which takes {units.seconds(floor)} at the data sheet's bandwidth: "
        f"the optimum is {units.digits(least / arch.boost_hz / floor)} times that."
    )
    for row in record["rows"]:
        per_sm = row["GS"] / arch.sms
        if per_sm > arch.blocks_per_sm:
            yield Text(
                f"BS {row['BS']}: {per_sm:.0f} blocks per SM, which holds {arch.blocks_per_sm} at most; "
                "the model does not know that limit."
            )
    if measured:
        fastest = min(sorted(measured), key=measured.__getitem__)
        yield Text(f"Measured fastest: GS {fastest[0]}, BS {fastest[1]}, {units.seconds(measured[fastest])}.")


def _run_gemm(args: argparse.Namespace) -> int:
    plot = plot_file(args.plot)
    arch = arches.get(args.arch, "--arch")
    if not arch.compiles:
        able = ", ".join(name for name, other in arches.ARCHES.items() if other.compiles)
        raise ArgumentError(
            argument="--arch",
            got=f"{arch.name!r}, for which no kernel compiles",
            wanted=f"one of {able}",
            fix="The compiler supports GPUs from compute capability 7.5 on.",
        )
    n = args.n
    problem = _packed(args.m or n, n, args.k or n, ALL[long_name(args.dtype, ALL)])
    rows = _gemm_rows(problem, arch)
    record = {
        "model": "gemm",
        "arch": arch.name,
        "problem": {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.name},
        "best": next(row["config"] for row in rows if row["chosen"]),
        "rows": rows,
    }
    answer(
        record,
        _gemm_report(problem, arch, rows),
        as_json=args.json,
        plot=plot,
        draw=lambda path: draw_tiles(f"gemm: {problem}, {arch.title}", _bars(rows), path),
    )
    return 0


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return the bars of the tile shapes that the table shows."""
    return [
        Bar(
            row["tile"] + (f", split-K {row['config']['SPLIT_K']}" if row["config"]["SPLIT_K"] > 1 else ""),
            row["seconds"],
            row["compute"],
            row["memory"],
            row["chosen"],
        )
        for row in _shown(rows)
    ]


def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the legal rows, of the many on tensor cores the best ones."""
    legal = [row for row in rows if row["ruled_out"] is None]
    if legal[0]["kernel"] == GEMM.entry:
        return legal
    return sorted(legal, key=lambda row: (row["seconds"], not row["chosen"]))[:_MOST_ROWS]


def _packed(m: int, n: int, k: int, dtype: DType) -> Gemm:
    """Return the product of packed matrices, whose rows are aligned as their lengths are."""
    a_align, b_align = (gcd(16, extent * dtype.itemsize) for extent in (k, n))
    return Gemm(m=m, n=n, k=k, dtype=dtype, a_align=a_align, b_align=b_align, d_align=b_align)


def _gemm_rows(problem: Gemm, arch: Arch) -> list[dict[str, Any]]:
    """Return every tile shape considered: its terms if it is legal, else the reason against it.

    Raises :class:`~matmill.errors.ArgumentError`, with the reasons, if none is legal.
    """
    entries = (_GEMM,) if problem.dtype.itemsize > 2 else _TENSOR_CORES
    rows: list[dict[str, Any]] = []
    for entry, config in ((each, config) for each in entries for config in each.space(problem, arch)):
        kernel = entry.kernel.with_config(config)
        reason = kernel.why_not(problem, arch)
        row = {
            "kernel": kernel.entry,
            "tile": _tile(config) if kernel.entry == GEMM.entry else f"{kernel.entry} {label(config)}",
            "config": dict((*config.constants, *config.launch)),
            "tiles": tile_count(problem, config),
            "ruled_out": reason,
        }
        if reason is None:
            prediction = entry.explain(problem, config, arch)
            rounds = waves(kernel, problem, arch)
            row |= {
                "seconds": float(prediction.seconds),
                "launch": PRICES.launch,
                "compute": float(prediction.terms["compute"]),
                "memory": float(prediction.terms["memory"]),
                "second": float(prediction.terms["second"] + prediction.terms.get("repack", 0.0)),
                "rounds": rounds.rounds if rounds is not None else 1,
                "bound": prediction.bound,
            }
        rows.append(row)
    reasons = dict.fromkeys(row["ruled_out"] for row in rows)
    if None not in reasons:
        raise ArgumentError(
            argument="--m, --n, --k",
            got=f"{problem} on {arch.title}",
            wanted="a product that one of the tile shapes takes",
            fix=f"Ruled out: {'; '.join(reasons)}.",
        )
    best = choose_from(entries, problem, arch).kernel
    chosen = best.entry, dict((*best.config.constants, *best.config.launch))
    return [{**row, "chosen": (row["kernel"], row["config"]) == chosen} for row in rows]


def _gemm_report(problem: Gemm, arch: Arch, rows: Sequence[dict[str, Any]]) -> Iterable[RenderableType]:
    """Yield the table of tile shapes, the model's sum, and the reasons against other shapes."""
    legal = _shown(rows)
    least = min(row["seconds"] for row in legal)
    fma = legal[0]["kernel"] == GEMM.entry
    counts = ("tiles", "slices", "rounds") if fma else ("tiles", "rounds")  # labels on tensor cores have the slices
    columns = [("tile", "left"), *((name, "right") for name in (*counts, "compute", "memory", "second", "time"))]
    columns += [("excess", "right"), ("bound", "left")]
    cells = [
        [
            "\n".join(textwrap.wrap(row["tile"], _TILE_WIDTH, break_on_hyphens=False)),
            *(units.count(row["config"]["SPLIT_K"] if name == "slices" else row[name]) for name in counts),
            units.seconds(row["compute"]),
            units.seconds(row["memory"]),
            units.seconds(row["second"]) if row["second"] else "-",
            units.seconds(row["seconds"]),
            units.percent(row["seconds"] / least - 1),
            row["bound"] + ("  <- chosen" if row["chosen"] else ""),
        ]
        for row in legal
    ]
    yield table(f"gemm: {problem}, {arch.title}", columns, cells)
    yield Text()
    both = "the larger of compute and memory" if fma else "start + compute and memory, which overlap"
    apart = "the launch that adds the split-K slices" if fma else "launches that add split-K slices or repack"
    yield Text(
        f"time = launch {units.seconds(PRICES.launch)} + {both} + second.\n"
        f"second: {apart}; excess: over the least.\n"
        f"tiles: of D, in BM x BN x BK; rounds: how often the busiest of {arch.sms} SMs takes new ones."
    )
    more = sum(row["ruled_out"] is None for row in rows) - len(legal)
    if more:
        yield Text(f"The best {len(legal)} are shown; --json has {more} more.")
    for row in rows:
        if row["ruled_out"] is not None:
            yield Text(f"Ruled out: {row['tile']}: {row['ruled_out']}")


def _tile(config: Config) -> str:
    return "x".join(str(config[name]) for name in ("BM", "BN", "BK"))


def _or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else units.seconds(seconds)
