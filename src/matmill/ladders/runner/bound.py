"""The bound that counters set to a rung's rate: the share of the peak that it reaches if one unit alone is busy.

Every unit is priced at its peak rate, in cycles of an SM. The bound knows no latency, no cache and no imbalance between
SMs, so a rung may stay far below it, never above. Stores of D are left out: they come once, and the emulated product
has few steps of k beside a measured one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch, measured
from matmill.emulator.report.counters import MATRIX_CLASSES
from matmill.ladders.runner.subject import Subject
from matmill.ladders.runner.traffic import used_over_moved

#: Lanes of a warp, warp instructions that an SM issues in a cycle, and bytes of a wavefront of L1 or shared memory.
_LANES, _ISSUED, _WAVEFRONT = 32, 4, 128
#: Sectors in a wavefront, and those that L2 delivers to an SM in a cycle.
_SECTORS, _FROM_L2 = 4, 2
#: Warp instructions that access memory.
_REQUESTS = (
    "global_load_requests", "shared_load_requests", "shared_store_requests",
    "cp_async_requests",
)  # fmt: skip
#: A counter stands out where it is this factor above what the accesses need.
_STANDS_OUT = 1.5


@dataclass(frozen=True)
class Bound:
    """The largest ``fraction`` of the peak that counters allow, and the unit that sets it.

    ``mark`` names a counter that stands out, as "banks, 2.9x", with its factor above the least, or is empty.
    """

    fraction: float
    unit: str
    mark: str = ""

    def __str__(self) -> str:
        """Format the bound for a table, as "12% loads" or "32% banks, 2.9x!"."""
        share = f"{self.fraction:.1%}" if self.fraction < 0.1 else f"{self.fraction:.0%}"
        if self.fraction > 1:  # a unit that is faster than the one whose peak this is
            share = f"{self.fraction:.2g}x"
        return f"{share} {self.mark}!" if self.mark else f"{share} {self.unit}"


def bound(counters: Mapping[str, int], problem: Any, subject: Subject[Any], arch: Arch) -> Bound | None:
    """Return the bound of a rung with these counters, or None for a GPU whose peak is unknown."""
    peak = subject.peak(problem, arch)
    if peak is None:
        return None
    ideal = subject.amount(problem) / peak * arch.boost_hz * arch.sms
    cycles = _cycles(counters, problem.dtype.name, arch)
    if "bytes" in subject.fields:
        cycles["DRAM"] = ideal
    unit = max(cycles, key=lambda name: cycles[name])
    return Bound(ideal / cycles[unit], unit, _mark(counters, unit))


def _cycles(c: Mapping[str, int], dtype: str, arch: Arch) -> dict[str, float]:
    """Return the cycles of one SM that each unit needs for the whole launch."""
    loaded = max(c["global_load_requests"], c["global_load_sectors"] / _SECTORS)
    banks = c["shared_load_wavefronts"] + c["shared_store_wavefronts"] + c["cp_async_shared_wavefronts"]
    arithmetic = c["ffma"] + c["fmul"] + c["fadd"]
    issued = arithmetic / _LANES + sum(c[name] for name in (*MATRIX_CLASSES, *_REQUESTS))
    matrix, rate = _matrix_unit(c, dtype, arch)
    return {
        # L1 and shared memory are one memory with one data path.
        "loads" if loaded > banks else "banks": loaded + banks,
        "FMA": arithmetic * arch.sms / arch.fp32_lanes,
        "issue slots": issued / _ISSUED,
        matrix: c["matrix_flops"] * arch.boost_hz * arch.sms / rate if rate else 0.0,
        "wgmma operands": c["wgmma_shared_bytes"] / _WAVEFRONT,
        "L2": c["bulk_load_sectors"] / _FROM_L2,
    }


def _matrix_unit(c: Mapping[str, int], dtype: str, arch: Arch) -> tuple[str, float]:
    """Return the name and the rate of the tensor cores: on Hopper mma.sync reaches a part of what wgmma does."""
    probe = measured(arch)
    if c["gmma"] or probe is None:
        sheet = arch.matrix_flops
        return "tensor cores", sheet.get(dtype, max(sheet.values(), default=0.0))
    return "mma.sync", probe.matrix_flops.get(dtype, max(probe.matrix_flops.values(), default=0.0))


def _mark(c: Mapping[str, int], unit: str) -> str:
    """Return the counter of a unit that stands out, or an empty text."""
    if unit == "loads":
        used = used_over_moved(c)
        if used is not None and used * _STANDS_OUT < 1:
            return f"sectors, {1 / used:.2g}x"
    if unit == "banks":
        passes = c["shared_load_wavefronts"] + c["shared_store_wavefronts"]
        ideal = c["shared_load_wavefronts_ideal"] + c["shared_store_wavefronts_ideal"]
        if passes > _STANDS_OUT * ideal:
            return f"banks, {passes / ideal:.2g}x"
    return ""
