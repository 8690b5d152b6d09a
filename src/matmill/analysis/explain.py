"""Why a problem is run as it is: its floor, the choice, what the other configurations lose, and what would be faster.

All of it is predicted by the cost models from a problem and an arch; nothing is measured. The floor is what the data
sheet allows: the least bytes at its bandwidth, or all operations at the peak of the units that can do them, whichever
takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matmill.analysis.candidates import Candidate, candidates
from matmill.analysis.changes import Change, changes
from matmill.analysis.roofline import PEAKS, PEAKS_BY_TYPE, in_words, roofs
from matmill.analysis.runner_ups import RunnerUp, runner_ups
from matmill.arch import Arch
from matmill.choose import choose, choose_transpose_add
from matmill.cost.inner_passes import FRAGMENTS
from matmill.kernel import Kernel
from matmill.problem import Geam, Gemm
from matmill.registry import PRODUCTION, TRANSPOSE_ADD_KERNELS, Production


@dataclass(frozen=True)
class Floor:
    """The least time that a GPU's data sheet allows, in seconds, and what sets it.

    ``bound`` is in the words of the roofline. ``compute_seconds`` are those of all operations at ``flops_per_s``, the
    peak of ``unit`` in words (None for a problem without products), ``memory_seconds`` those of the least bytes.
    """

    seconds: float
    bound: str
    unit: str | None
    flops_per_s: float | None
    compute_seconds: float
    memory_seconds: float


@dataclass(frozen=True)
class Explanation:
    """What ``matmill why`` says of one problem.

    ``legal`` are all legal configurations, those with the fastest calls first. ``ruled_out`` gives the reason against
    each of the others.
    """

    problem: Gemm | Geam
    arch: Arch
    floor: Floor
    chosen: Candidate
    runner_ups: tuple[RunnerUp, ...]
    changes: tuple[Change, ...]
    legal: tuple[Candidate, ...]
    ruled_out: Mapping[str, str]

    @property
    def share(self) -> float:
        """The floor over the predicted time: 1 would be the best that the GPU can do."""
        return self.floor.seconds / self.chosen.seconds


def explain(problem: Gemm | Geam, arch: Arch) -> Explanation:
    """What ``problem`` is run with on ``arch``, and why.

    Raises :class:`~matmill.errors.IllegalConfigError` where no kernel takes it.

    >>> from matmill.arch import get
    >>> from matmill.dtypes import F16
    >>> found = explain(Gemm(4096, 4096, 4096, F16), get("h200"))
    >>> found.chosen.kernel.entry, found.floor.bound, round(found.floor.seconds * 1e6)
    ('wgmma_gemm', 'compute: tensor cores', 139)
    """
    if isinstance(problem, Gemm):
        entries: Sequence[Production[Any]] = PRODUCTION
        taken: Kernel[Any] = choose(problem, arch).kernel
    else:
        entries, taken = TRANSPOSE_ADD_KERNELS, choose_transpose_add(problem, arch).kernel
    legal, ruled_out = candidates(entries, problem, arch)
    chosen = next(one for one in legal if one.kernel == taken)
    return Explanation(
        problem,
        arch,
        floor(problem, arch, legal),
        chosen,
        runner_ups(legal, chosen),
        changes(problem, arch) if isinstance(problem, Gemm) else (),
        tuple(legal),
        ruled_out,
    )


def floor(problem: Gemm | Geam, arch: Arch, legal: Sequence[Candidate] = ()) -> Floor:
    """The least time by the data sheet.

    The units are the fastest that multiply such elements. 16-bit elements may be widened for the FMA units. float32
    elements may be split for the tensor cores, into three products for each of theirs, where one of the ``legal``
    configurations does so. Of a Gram matrix half is enough.

    >>> from matmill.arch import get
    >>> floor(Gemm(1, 4096, 4096), get("h200")).bound
    'memory: DRAM'
    """
    memory = problem.least_bytes / arch.dram_bytes_per_s
    if not isinstance(problem, Gemm):
        return Floor(memory, in_words("dram"), None, None, 0.0, memory)
    name = "tf32" if problem.precision == "tf32" else problem.dtype.name
    usable = dict.fromkeys(PEAKS_BY_TYPE[name], 1)
    if problem.dtype.wider is not None:
        usable["ffma"] = 1
    if any(dict(one.config.constants).get("MMA") for one in legal) and name == "float32":
        usable["hmma.tf32"] = FRAGMENTS[problem.dtype.itemsize].parts
    sheet = {unit: figure.sheet for unit, figure in roofs(arch).peaks.items() if figure.sheet is not None}
    rates = {unit: sheet[unit] / products for unit, products in usable.items() if unit in sheet}
    unit = max(rates, key=rates.__getitem__)
    flops = problem.flops * ((problem.m + 1) / (2 * problem.m) if problem.gram else 1)
    compute = flops / rates[unit]
    split = f", {usable[unit]} products for each of float32" if usable[unit] > 1 else ""
    bound = in_words(unit if compute >= memory else "dram")
    return Floor(max(compute, memory), bound, PEAKS[unit] + split, rates[unit], compute, memory)
