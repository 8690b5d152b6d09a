"""A GPU's parameters by measurement: latencies, bandwidths, rates of arithmetic, the cost of a launch.

Only :func:`probe` needs a GPU. ``docs/cost-models.md`` says how each figure is measured.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from matmill.arch import Arch, Measured
from matmill.bench.environment import nvidia_smi
from matmill.bench.probe.latency import LATENCIES
from matmill.bench.probe.rates import MATRIX_RATES, RATES, multiply_adds
from matmill.bench.probe.samples import Runs, Spread, nonsense
from matmill.bench.progress import Progress, silent
from matmill.runtime.gpu import GPU

#: The highest credible rate, relative to the data sheet's: GeForce cards clock up to a quarter higher.
MOST = 1.3
#: Seconds of arithmetic before the first figure, in which the clocks rise and then reach their limit.
_SETTLE = 0.5
#: Pairs of latencies: the first must be below the second, because its memory is nearer.
_NEARER = (("sigma_s", "sigma_l2"), ("sigma_l1", "sigma_l2"), ("sigma_l2", "sigma_g"))


@dataclass(frozen=True)
class Probed:
    """The measurements of a probe on a GPU.

    ``measured`` has the figures, in the units of :class:`~matmill.arch.Measured`, and ``spreads`` the median, least and
    greatest of each figure's samples, by name; a matrix rate's name is ``matrix_flops, float16``.
    """

    arch: Arch
    measured: Measured
    spreads: Mapping[str, Spread]

    def as_dict(self) -> dict[str, Any]:
        """Return all as one JSON document, with the data sheet's figures (None if it has none)."""
        return {
            "arch": self.arch.name,
            "title": self.arch.title,
            "measured": asdict(self.measured),
            "samples": {name: asdict(spread) for name, spread in self.spreads.items()},
            "data_sheet": data_sheet(self.arch),
        }


def probe(gpu: GPU, progress: Progress = silent) -> Probed:
    """Measure everything on ``gpu``, which takes about half a minute on an otherwise idle GPU.

    Raises :class:`~matmill.errors.MatmillError` for an impossible figure, with its name.
    """
    steps = {**LATENCIES, **RATES, **{f"matrix_flops, {name}": step for name, step in MATRIX_RATES.items()}}
    spreads: dict[str, Spread] = {}
    with Runs(gpu) as runs:
        progress("settling", 0, len(steps))
        end = time.perf_counter() + _SETTLE
        while time.perf_counter() < end:
            multiply_adds(runs, "fma_flops")
        for done, (name, step) in enumerate(steps.items()):
            progress(name, done, len(steps))
            spread = step(runs)
            if spread is not None:
                spreads[name] = spread
    progress("done", len(steps), len(steps))
    refuse_nonsense(gpu.arch, spreads)
    figures = {name: spreads[name].median for name in (each.name for each in fields(Measured)) if name in spreads}
    matrix = {name: spreads[key].median for name in MATRIX_RATES if (key := f"matrix_flops, {name}") in spreads}
    today = dt.datetime.now(dt.UTC).date().isoformat()
    measured = Measured(**figures, date=today, driver=_driver(), matrix_flops=matrix)
    return Probed(gpu.arch, measured, spreads)


def data_sheet(arch: Arch) -> dict[str, float | None]:
    """Return the data sheet's value of each figure, in the figure's unit, or None.

    The keys are the names of :class:`Probed`.
    """
    known = {
        "clock_hz": arch.boost_hz,
        "fma_flops": arch.fp32_flops,
        "fma_outer_flops": arch.fp32_flops,
        "fma64_flops": arch.fp64_flops,
        "read_bytes_per_s": arch.dram_bytes_per_s,
        "copy_bytes_per_s": arch.dram_bytes_per_s,
        "write_bytes_per_s": arch.dram_bytes_per_s,
        "shared_bytes_per_s": arch.shared_bytes_per_s,
    }
    matrix = {f"matrix_flops, {name}": arch.matrix_flops.get(name) for name in MATRIX_RATES}
    return {name: known.get(name) for name in (*LATENCIES, *RATES)} | matrix


def refuse_nonsense(arch: Arch, spreads: Mapping[str, Spread]) -> None:
    """Raise :class:`~matmill.errors.MatmillError` for the first figure that contradicts the data sheet or another."""
    for name, best in data_sheet(arch).items():
        # If the driver does not report a clock, the sheet's figure is 0 and cannot be compared.
        if best and name in spreads and spreads[name].median > MOST * best:
            raise nonsense(name, f"{spreads[name].median:.4g}", f"at most {MOST} times the data sheet's {best:.4g}")
    for near, far in _NEARER:
        if spreads[near].median >= spreads[far].median:
            got = f"{spreads[near].median:.4g} cycles, and {far} of {spreads[far].median:.4g}"
            raise nonsense(near, got, "the nearer memory to answer first")


def _driver() -> str:
    """Return the driver's version as nvidia-smi reports it."""
    report = nvidia_smi()
    return report[0]["driver_version"] if report else "unknown"
