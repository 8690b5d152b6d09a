"""``matmill roofline``: a GPU's peaks and bandwidths, their balance points, and the bound of a product or a tile."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill import arch as arches
from matmill.analysis import roofline as cost
from matmill.analysis.floor import Floor, floor
from matmill.analysis.roofline import LEVELS, PEAKS, SHEET, AtRates, Figure, Roofs, Tile, TileBound
from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.plots.roofline import Point, draw
from matmill.choose import Choice, choose
from matmill.cli.console import answer, table
from matmill.cli.options import Subparsers, plot_file, seconds, size
from matmill.config import Config
from matmill.dtypes import ALL, F64, DType, long_name
from matmill.errors import ArgumentError, IllegalConfigError
from matmill.problem import Gemm

#: The blog's estimate for tiles taken in order: one operand hits, the other misses.
HIT_RATE = 0.5
_MOST_REGISTERS = 255


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "roofline",
        help="a GPU's peaks and bandwidths, where they balance, and what bounds a product or a tile shape",
        description="Show the arithmetic peaks and memory levels of a GPU and the operations per byte at which they "
        "balance; what bounds a product at best; and what a tile shape meets. Needs no GPU.",
    )
    add = parser.add_argument
    add("--arch", default=arches.DEFAULT, help=f"for which GPU (default: {arches.DEFAULT})")
    add("--n", type=size, help="columns of B and, where they are not given, m and k")
    add("--m", type=size, help="rows of A (default: n)")
    add("--k", type=size, help="columns of A, rows of B (default: n)")
    names = ", ".join(cost.PEAKS_BY_TYPE)
    add("--dtype", help=f"one of {names} (default: float16, or float32 where there are no tensor cores)")
    add("--tile", metavar="BM,BN,BK", help="a block's tile, for instance 256,128,64")
    add("--warp-tile", metavar="WM,WN", help="a warp's tile in it, for instance 64,64")
    share = f"share of a block's reads that L2 answers (default: {HIT_RATE})"
    add("--l2-hit-rate", type=float, default=HIT_RATE, metavar="R", help=share)
    add("--stages", type=size, default=1, help="tiles of A and B in shared memory at once (default: 1)")
    add("--registers", type=size, metavar="N", help="registers per thread (default: those of the sums alone)")
    add("--measured", type=seconds, metavar="SECONDS", help="what the product took, to show beside its bound")
    add("--plot", metavar="FILE", help="draw the roofline into FILE (.svg or .png)")
    add("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Show the roofline, and the bounds of the product and of the tile."""
    plot = plot_file(args.plot)
    arch = arches.get(args.arch, "--arch")
    roofs = cost.roofs(arch, arches.measured(arch))
    name = _dtype(args.dtype, roofs)
    unit = cost.unit_for(roofs, name, "--dtype")
    problem = _problem(args, name)
    tile = _tile(args.tile, args.warp_tile)
    record: dict[str, Any] = {
        "arch": arch.name,
        "source": arch.source,
        "figures": {key: vars(figure) for key, figure in {**roofs.peaks, **roofs.levels}.items()},
        "balance": cost.balance(roofs),
        "dtype": name,
        "unit": unit,
        "intensity": None,
        "bound": None,
    }
    points: list[Point] = []
    if args.measured is not None and problem is None:
        raise ArgumentError(
            argument="--measured", got=f"{args.measured:g}", wanted="a product beside it", fix="Add --n, --m and --k."
        )
    parts: list[RenderableType] = list(_figures(roofs))
    if problem is not None:
        kernel = _kernel(problem, arch)
        least = floor(problem, arch, () if isinstance(kernel, str) else (kernel.kernel.config,))
        met = cost.at_rates(problem, roofs, unit)
        record |= {"intensity": met.intensity, "bound": least.bound}
        record["problem"] = _problem_record(problem, name, least, met)
        chosen = _chosen(kernel, problem, roofs, args.l2_hit_rate)
        record["chosen"] = chosen
        points += _points(problem, name, least, met, chosen, args.measured)
        parts += _problem_report(problem, name, least, met, chosen)
        if args.measured is not None:
            record["problem"]["measured_seconds"] = args.measured
            parts.append(_measured_report(problem, least, args.measured))
    if tile is not None:
        dtype = cost.storage(name, ALL)
        bound = cost.tile_bound(tile, dtype.itemsize, roofs, unit, args.l2_hit_rate)
        held = _occupancy(tile, dtype, arch, args.stages, args.registers)
        record["tile"] = _tile_record(tile, bound, args.l2_hit_rate) | held
        if problem is None:
            record |= {"intensity": bound.block, "bound": bound.bound}
        points.append(Point(f"tile {tile.bm}x{tile.bn}, L2 hits {args.l2_hit_rate:g}", bound.block, bound.flops_per_s))
        parts += _tile_report(tile, name, unit, bound, roofs, args.l2_hit_rate)
        parts += _occupancy_report(held)
    answer(record, parts, as_json=args.json, plot=plot, draw=partial(draw, roofs, unit, points))
    return 0


def _dtype(text: str | None, roofs: Roofs) -> str:
    """Return the element type of the option, long or short, else the default."""
    if text is None:
        return "float16" if "hmma" in roofs.peaks else "float32"
    return long_name(text, cost.PEAKS_BY_TYPE)


def _problem(args: argparse.Namespace, name: str) -> Gemm | None:
    if args.m is None and args.n is None and args.k is None:
        return None
    if args.n is None:
        raise ArgumentError(
            argument="--n", got="none", wanted="columns of B", fix="Give --n as well; --m and --k default to it."
        )
    precision = "tf32" if name == "tf32" else "default"
    dtype = cost.storage(name, ALL)
    return Gemm(m=args.m or args.n, n=args.n, k=args.k or args.n, dtype=dtype, precision=precision)


def _tile(block: str | None, warp: str | None) -> Tile | None:
    """Return the tile that both options describe."""
    if block is None:
        if warp is not None:
            raise ArgumentError(
                argument="--warp-tile", got=repr(warp), wanted="--tile beside it", fix="Add --tile BM,BN,BK."
            )
        return None
    bm, bn, bk = _numbers(block, "--tile", "BM,BN,BK", 3)
    if warp is None:
        return Tile(bm, bn, bk)
    wm, wn = _numbers(warp, "--warp-tile", "WM,WN", 2)
    return Tile(bm, bn, bk, wm, wn)


def _numbers(text: str, argument: str, form: str, count: int) -> list[int]:
    parts = text.split(",")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 20 for part in parts):
        raise ArgumentError(
            argument=argument,
            got=repr(text),
            wanted=f"{form}, whole numbers of 1 or more",
            fix=f"For instance {argument} {'256,128,64' if count == 3 else '64,64'}.",
        )
    return [int(part) for part in parts]


def _kernel(problem: Gemm, arch: Arch) -> Choice[Gemm] | str:
    """Return the cost models' choice for a product, or why there is none."""
    if not arch.compiles:
        return f"no kernel compiles for the {arch.title}"
    try:
        return choose(problem, arch)
    except IllegalConfigError:
        return f"no production kernel takes {problem}"


def _chosen(choice: Choice[Gemm] | str, problem: Gemm, roofs: Roofs, hit_rate: float) -> dict[str, Any]:
    """Return the production kernel's constants for a product and the bound of its tile, or why there is none."""
    if isinstance(choice, str):
        return {"kernel": None, "why": choice}
    config = choice.kernel.config
    fields: dict[str, Any] = {
        "kernel": choice.kernel.entry,
        "config": dict((*config.constants, *config.launch)),
        "predicted_seconds": choice.predicted_seconds,
    }
    tile = _tile_of(config)
    if tile is None:
        return fields
    unit, able = _units_of(choice, problem, roofs)
    met = cost.tile_bound(tile, problem.dtype.itemsize, able, unit, hit_rate)
    return fields | {"unit": unit, "tile": _tile_record(tile, met, hit_rate)}


def _units_of(choice: Choice[Gemm], problem: Gemm, roofs: Roofs) -> tuple[str, Roofs]:
    """Return the units that a kernel multiplies with, and the roofs for these."""
    if choice.kernel.instruction == "fma":
        return ("dfma" if problem.dtype is F64 else "ffma"), roofs
    unit = cost.unit_for(roofs, "tf32" if problem.precision == "tf32" else problem.dtype.name)
    sheet = roofs.peaks[unit].sheet
    if choice.kernel.instruction != "wgmma" or sheet is None:
        return unit, roofs
    # A probe times mma.sync, which is slower than wgmma.
    return unit, replace(roofs, peaks={**roofs.peaks, unit: Figure(sheet, SHEET, sheet)})


def _tile_of(config: Config) -> Tile | None:
    """Return the tile of a kernel's constants, or None for a kernel without tiles of D."""
    values = dict(config.constants)
    if not {"BM", "BN", "BK"} <= values.keys():
        return None
    bm, bn, bk = (values[name] for name in ("BM", "BN", "BK"))
    wm = values.get("WM") or (bm // values["WARPS_M"] if "WARPS_M" in values else None)
    wn = values.get("WN") or (bn // values["WARPS_N"] if "WARPS_N" in values else None)
    return Tile(bm, bn, bk, wm, wn)


def _occupancy(tile: Tile, dtype: DType, arch: Arch, stages: int, registers: int | None) -> dict[str, Any]:
    """Return the blocks that an SM holds with their limits, or why the tile cannot run."""
    shared = tile.shared_bytes(dtype.itemsize, stages)
    threads, sums = tile.threads, tile.sum_registers(dtype)
    fields: dict[str, Any] = {"shared_bytes": shared, "stages": stages, "threads": threads}
    reasons = []
    if shared > arch.shared_per_block:
        reasons.append(f"shared memory {shared} > {arch.shared_per_block} bytes per block")
    if threads is None or sums is None:
        return fields | {"why_not": "; ".join(reasons) or None, "occupancy": None, "limited_by": None}
    if threads > arch.max_threads_per_block:
        reasons.append(f"{threads} > {arch.max_threads_per_block} threads per block")
    used = registers or sums
    if used > _MOST_REGISTERS:
        reasons.append(f"{used} > {_MOST_REGISTERS} registers per thread")
    blocks, limits = arch.resident(threads, used, shared)
    if not blocks and not reasons:
        reasons.append(f"one block needs more {' and '.join(limits)} than an SM has")
    return fields | {
        "registers": used,
        "registers_are": "given" if registers else "of the sums alone: the least",
        "why_not": "; ".join(reasons) or None,
        "blocks_per_sm": blocks,
        "occupancy": arch.occupancy(threads, used, shared),
        "limited_by": list(limits),
    }


def _problem_record(problem: Gemm, name: str, least: Floor, met: AtRates) -> dict[str, Any]:
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": name,
        "flops": problem.flops,
        "bytes": problem.least_bytes,
        "least_seconds": least.seconds,
        "attainable_flops_per_s": problem.flops / least.seconds,
        "at_rates": {"bound": met.bound, "seconds": met.seconds, "flops_per_s": met.flops_per_s},
    }


def _tile_record(tile: Tile, bound: TileBound, hit_rate: float) -> dict[str, Any]:
    return {
        "BM": tile.bm,
        "BN": tile.bn,
        "BK": tile.bk,
        "WM": tile.wm,
        "WN": tile.wn,
        "l2_hit_rate": hit_rate,
        "block": {"intensity": bound.block, "balance": bound.cautious_block},
        "warp": {"intensity": bound.warp, "balance": bound.cautious_warp},
        "needs": dict(bound.needs),
        "bound": bound.bound,
        "attainable_flops_per_s": bound.flops_per_s,
    }


def _figures(roofs: Roofs) -> Iterable[RenderableType]:
    """Yield the figures with their sources, and the balance points."""
    known = [(PEAKS[name], figure, "FLOP/s") for name, figure in roofs.peaks.items()]
    known += [(LEVELS[name], figure, "B/s") for name, figure in roofs.levels.items()]
    rows = [
        [
            name,
            units.quantity(figure.value, unit),
            figure.source,
            "-" if figure.sheet is None else units.quantity(figure.sheet, unit),
        ]
        for name, figure, unit in known
    ]
    columns = [("", "left"), ("rate", "right"), ("source", "left"), ("data sheet", "right")]
    yield table(f"Roofs of the {roofs.arch.title}", columns, rows)
    if roofs.arch.source:
        yield Text(f"data sheet: {roofs.arch.source}")
    if "l2" not in roofs.levels:
        yield Text(f"L2: not known for the {roofs.arch.title}; `matmill probe` measures it there.")
    yield Text()
    points = cost.balance(roofs)
    columns = [("", "left"), *((LEVELS[level], "right") for level in LEVELS)]
    cells = [
        [PEAKS[peak], *(_digits(points[f"{peak}/{level}"]) for level in LEVELS)]
        for peak in PEAKS
        if peak in roofs.peaks
    ]
    yield table("Balance points, FLOP/B", columns, cells)


def _problem_report(
    problem: Gemm, name: str, least: Floor, met: AtRates, chosen: dict[str, Any]
) -> Iterable[RenderableType]:
    """Yield the product's bound, its time at the measured rates, and the bound of its kernel's tile."""
    yield Text()
    yield Text(f"{problem.m}x{problem.n}x{problem.k} {name}", style="bold")
    yield Text(
        f"{units.quantity(problem.flops, 'FLOP')} on {units.quantity(problem.least_bytes, 'B')}, every input read "
        f"once: {_digits(met.intensity)} FLOP/B"
    )
    yield Text(f"bound: {least.bound}; at the least {_at(problem, least.seconds)}, by the data sheet")
    yield Text(f"at the rates above: {_at(problem, met.seconds)}; {met.bound}")
    if chosen["kernel"] is None:
        yield Text(chosen["why"])
        return
    predicted = units.seconds(chosen["predicted_seconds"])
    tile = chosen.get("tile")
    if tile is None:
        yield Text(f"chosen: {chosen['kernel']}, {predicted} predicted; it has no tiles of D")
        return
    shape = "x".join(str(tile[key]) for key in ("BM", "BN", "BK"))
    yield Text(
        f"chosen: {chosen['kernel']}, tile {shape}, {predicted} predicted; its tile meets {tile['bound']} "
        f"({_digits(tile['block']['intensity'])} FLOP/B per block, {_digits(tile['warp']['intensity'])} per warp)"
    )


def _measured_report(problem: Gemm, least: Floor, seconds: float) -> Text:
    """Return a measured time, compared with the bound."""
    return Text(f"measured: {_at(problem, seconds)}, {units.digits(seconds / least.seconds)} times the least")


def _points(  # noqa: PLR0917 — all of one product
    problem: Gemm, name: str, least: Floor, met: AtRates, chosen: dict[str, Any], measured: float | None
) -> list[Point]:
    """Return the product's points in the plot: at its bound, as predicted, as measured, and its kernel's tile."""
    sizes = f"{problem.m}x{problem.n}x{problem.k} {name}"
    points = [Point(f"{sizes}, at the least", met.intensity, problem.flops / least.seconds)]
    if "predicted_seconds" in chosen:
        rate = problem.flops / chosen["predicted_seconds"]
        points.append(Point(f"{chosen['kernel']}, predicted", met.intensity, rate))
    if measured is not None:
        points.append(Point("measured", met.intensity, problem.flops / measured))
    tile = chosen.get("tile")
    if tile is not None:
        label = f"its tile {tile['BM']}x{tile['BN']}, L2 hits {tile['l2_hit_rate']:g}"
        points.append(Point(label, tile["block"]["intensity"], tile["attainable_flops_per_s"]))
    return points


def _at(problem: Gemm, seconds: float) -> str:
    """Format a time with the rate that follows from it."""
    return f"{units.seconds(seconds)}, {units.quantity(problem.flops / seconds, 'FLOP/s')}"


def _tile_report(  # noqa: PLR0917 — all of one tile
    tile: Tile, name: str, unit: str, bound: TileBound, roofs: Roofs, hit_rate: float
) -> Iterable[RenderableType]:
    """Yield a tile shape's bounds at every level, and the blog's reading of it."""
    yield Text()
    warps = f", warps {tile.wm}x{tile.wn}" if tile.wm and tile.wn else ""
    title = f"Tile {tile.bm}x{tile.bn}x{tile.bk}{warps}, {name}, L2 hit rate {hit_rate:g}"
    met = {"dram": bound.block, "l2": bound.block, "shared": bound.warp}
    what = {"dram": "block, misses from DRAM", "l2": "block, all from L2", "shared": "warp, from shared memory"}
    rows = [
        [what[level], _digits(met[level]), _digits(bound.needs[level]), _enough(met, bound, level)] for level in met
    ]
    columns = [("", "left"), ("FLOP/B", "right"), ("needed", "right"), ("enough", "left")]
    yield table(title, columns, rows)
    peak = roofs.peaks[unit]
    yield Text(
        f"bound: {bound.bound}; at the most {units.quantity(bound.flops_per_s, 'FLOP/s')} of "
        f"{units.quantity(peak.value, 'FLOP/s')}"
    )
    sheet = units.quantity(peak.sheet or peak.value, "FLOP/s")
    if bound.cautious_block is None:
        yield Text("The blog's mean of DRAM and L2: not known without the bandwidth of L2")
    else:
        mean = cost.mean_bandwidth(roofs, hit_rate) or 0.0
        yield Text(
            f"The blog's reading, {sheet} by the data sheet over the mean of DRAM and L2, "
            f"{units.quantity(mean, 'B/s')}: block {_digits(bound.block)} against {_digits(bound.cautious_block)}"
        )
    if bound.warp is not None:
        yield Text(f"and {sheet} over shared memory: warp {_digits(bound.warp)} against {_digits(bound.cautious_warp)}")


def _enough(met: dict[str, float | None], bound: TileBound, level: str) -> str:
    has, needs = met[level], bound.needs[level]
    return "-" if has is None or needs is None else "yes" if has >= needs else "no"


def _occupancy_report(held: dict[str, Any]) -> Iterable[RenderableType]:
    """Yield how many blocks an SM holds, and what limits them."""
    stages = f"{held['stages']} stage{'s' if held['stages'] > 1 else ''}"
    text = f"shared memory {held['shared_bytes']} bytes for {stages} of A and B, no padding"
    if held["occupancy"] is None:
        yield Text(f"{text}; give --warp-tile for the occupancy")
    else:
        yield Text(f"{text}; {held['threads']} threads; {held['registers']} registers ({held['registers_are']})")
        limits = " and ".join(held["limited_by"])
        blocks = f"{held['blocks_per_sm']} block{'s' if held['blocks_per_sm'] != 1 else ''} per SM"
        yield Text(f"occupancy {units.percent(held['occupancy'])}, {blocks}, limited by {limits}")
    if held["why_not"]:
        yield Text(f"it cannot run: {held['why_not']}")


def _digits(value: float | None) -> str:
    """Format one decimal below 1000, which keeps the blog's figures recognizable.

    >>> _digits(224.545), _digits(38.59), _digits(None), _digits(1365.3)
    ('224.5', '38.6', '-', '1365')
    """
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"
