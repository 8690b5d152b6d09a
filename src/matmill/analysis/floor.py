"""The least time that a GPU's data sheet allows: the bound in all commands and pages.

It is the time of the least bytes at the data sheet's bandwidth, or of all operations at the data sheet's peak of the
units that execute them, whichever is longer. Rates that a probe measured are not bounds: longer reads than the probe's
move more bytes per second, and ``wgmma`` is faster than the ``mma.sync`` that it times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matmill.analysis.roofline import PEAKS, PEAKS_BY_TYPE, in_words, roofs
from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import F32
from matmill.kernels.pieces import method
from matmill.kernels.shared.tensor_cores import TF32_PRODUCTS
from matmill.precision import SHORTEST_K
from matmill.problem import Geam, Gemm

#: Units that multiply pieces of float32, by method; each product of float32 takes three of pieces.
_OF_PIECES = {"fp16x3": "hmma", "tf32x3": "hmma.tf32"}


@dataclass(frozen=True)
class Floor:
    """The least time that a GPU's data sheet allows, in seconds, and its cause.

    ``bound`` is in the words of the roofline. ``compute_seconds`` is the time of all operations at ``flops_per_s``, the
    peak of ``unit`` (both None for a problem without products), ``memory_seconds`` the time of the least bytes.
    """

    seconds: float
    bound: str
    unit: str | None
    flops_per_s: float | None
    compute_seconds: float
    memory_seconds: float


def floor(problem: Gemm | Geam, arch: Arch, configs: Iterable[Config] = ()) -> Floor:
    """Return the least time by the data sheet.

    The units are the fastest that multiply such elements. 16-bit elements may be widened for the FMA units. float32
    elements may be split into three tensor-core products, if the precision allows it or one of ``configs`` does so.
    Pieces are no compulsory traffic: they may stay in L2, or in registers. A Gram matrix needs only half of the
    operations.

    >>> from matmill.arch import get
    >>> floor(Gemm(1, 4096, 4096), get("h200")).bound
    'memory: DRAM'
    >>> floor(Gemm(4096, 4096, 4096, precision="float32_tensor"), get("h200")).unit
    'tensor cores, float16, 3 products for each of float32'
    """
    memory = problem.least_bytes / arch.dram_bytes_per_s
    if not isinstance(problem, Gemm):
        return Floor(memory, in_words("dram"), None, None, 0.0, memory)
    if problem.dtype.is_integer:
        return _of_integers(problem, arch, memory)
    name = "tf32" if problem.precision == "tf32" else (problem.dtype.part or problem.dtype).name
    usable = dict.fromkeys(PEAKS_BY_TYPE[name], 1)
    if problem.dtype.wider is not None:
        usable["ffma"] = 1
    methods = {split_method(problem, config) for config in configs}
    methods |= set(problem.split_methods if problem.k >= SHORTEST_K else ())
    usable |= {_OF_PIECES[by]: TF32_PRODUCTS for by in methods if by is not None}
    sheet = {unit: figure.sheet for unit, figure in roofs(arch).peaks.items() if figure.sheet is not None}
    rates = {unit: sheet[unit] / products for unit, products in usable.items() if unit in sheet}
    unit = max(rates, key=rates.__getitem__)
    flops = problem.flops * ((problem.m + 1) / (2 * problem.m) if problem.gram and problem.m else 1)
    compute = flops / rates[unit]
    split = f", {usable[unit]} products for each of float32" if usable[unit] > 1 else ""
    bound = in_words(unit if compute >= memory else "dram")
    return Floor(max(compute, memory), bound, PEAKS[unit] + split, rates[unit], compute, memory)


def _of_integers(problem: Gemm, arch: Arch, memory: float) -> Floor:
    """Return the floor of integers: tensor cores multiply bytes twice as fast as float16, other units the rest."""
    unit, rate = "integer units", arch.peak(problem.dtype.accumulator.name)
    if problem.dtype.itemsize == 1 and "float16" in arch.matrix_flops:
        unit, rate = "tensor cores, integers", 2 * arch.matrix_flops["float16"]
    compute = problem.flops / rate
    bound = f"compute: {unit.partition(',')[0]}" if compute >= memory else in_words("dram")
    return Floor(max(compute, memory), bound, unit, rate, compute, memory)


def split_method(problem: Gemm, config: Config) -> str | None:
    """Return the method by which a configuration multiplies float32 elements in pieces, or None if it does not.

    >>> split_method(Gemm(4, 4, 4), Config.of(MMA=1)), split_method(Gemm(4, 4, 4), Config.of(MMA=0))
    ('tf32x3', None)
    """
    if problem.dtype is not F32:
        return None
    if config.get("PIECES"):
        return method(config)
    return "tf32x3" if config.get("MMA") or config.get("SUM_K") else None
