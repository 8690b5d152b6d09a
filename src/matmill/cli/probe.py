"""``matmill probe``: measures a GPU's parameters, compares them with its data sheet, and writes an arch file."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from matmill import arch as arches
from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.probe.run import Probed, data_sheet, probe
from matmill.bench.probe.samples import Spread
from matmill.cli.console import progress, show, show_json, table
from matmill.cli.options import Subparsers, writable
from matmill.errors import ArgumentError, NoGPUError
from matmill.runtime import gpu

#: Titles of the figures, in the order of the table.
_TITLES = {
    "clock_hz": "clock",
    "sigma_add": "latency, add (float32)",
    "sigma_mul": "latency, multiply (float32)",
    "sigma_fma": "latency, FMA (float32)",
    "sigma_fma64": "latency, FMA (float64)",
    "sigma_s": "latency, shared memory",
    "sigma_l1": "latency, L1",
    "sigma_l2": "latency, L2",
    "sigma_g": "latency, global memory",
    "read_bytes_per_s": "global memory, read",
    "write_bytes_per_s": "global memory, written",
    "copy_bytes_per_s": "global memory, copied",
    "l2_bytes_per_s": "L2, read",
    "shared_bytes_per_s": "shared memory, read",
    "fma_flops": "FMA (float32)",
    "fma_outer_flops": "outer products (float32)",
    "fma64_flops": "FMA (float64)",
    "matrix_flops, float16": "mma.sync (float16)",
    "matrix_flops, bfloat16": "mma.sync (bfloat16)",
    "matrix_flops, tf32": "mma.sync (tf32)",
    "matrix_flops, float64": "mma.sync (float64)",
    "launch_seconds": "launch, on the GPU",
    "enqueue_seconds": "launch, on the host",
}


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "probe",
        help="measure the GPU's latencies, bandwidths and rates, and keep them for the cost models",
        description="Measure the GPU's own parameters with micro-benchmarks, show them beside its data sheet, and "
        "write them to an arch file. Needs a GPU, with nothing else running on it, for half a minute.",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: arches/ in the cache folder)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Probe the first GPU; return 3 if there is none."""
    if args.out is not None:
        writable(args.out, "--out")
    reason = gpu.unavailable()
    if reason is not None:
        raise NoGPUError(
            argument="probe",
            got=f"no GPU: {reason}",
            wanted="a usable NVIDIA GPU",
            fix="What is measured is the GPU itself; `matmill doctor` says more.",
        )
    device = gpu.GPU.get(0)
    path = args.out or _default(device.arch)
    with progress() as report:
        figures = probe(device, report)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arches.save(path, figures.arch, figures.measured)
    if args.json:
        show_json({**figures.as_dict(), "file": str(path)})
    else:
        show(_report(figures, path))
    return 0


def _default(arch: Arch) -> Path:
    path = arches.user_file(arch)
    if path is None:
        raise ArgumentError(
            argument="--out",
            got="none, while the cache is switched off",
            wanted="a file to write to",
            fix="Give --out FILE, or leave MATMILL_CACHE unset.",
        )
    return path


def _report(figures: Probed, path: Path) -> Iterable[RenderableType]:
    """Yield the table of figures and the file they were written to."""
    sheet = data_sheet(figures.arch)
    columns = [("", "left"), *((name, "right") for name in ("measured", "least", "greatest", "data sheet", "share"))]
    rows = [
        [title, *_cells(name, figures.spreads[name], sheet[name])]
        for name, title in _TITLES.items()
        if name in figures.spreads
    ]
    yield table(f"{figures.arch.title}, driver {figures.measured.driver}, {figures.measured.date}", columns, rows)
    yield Text()
    yield Text("measured: median of several runs; bandwidths of all SMs together.")
    yield Text(f"Written: {path}")


def _cells(name: str, spread: Spread, sheet: float | None) -> list[str]:
    figures = [_figure(name, value) for value in (spread.median, spread.least, spread.greatest)]
    # Some drivers report no clock, and then there is no sheet's figure to compare with.
    return [*figures, _figure(name, sheet), units.percent(spread.median / sheet)] if sheet else [*figures, "-", "-"]


def _figure(name: str, value: float) -> str:
    """Format a figure with its unit, which its name implies."""
    if name.startswith("sigma"):
        return f"{units.digits(value)} cycles"
    if name.endswith("_seconds"):
        return units.seconds(value)
    if name.endswith("_hz"):
        return f"{units.digits(value / 1e9)} GHz"
    return units.quantity(value, "B/s") if name.endswith("_per_s") else units.rate(value / 1e12)
