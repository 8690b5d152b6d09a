"""The reasons for a choice: the floor, the chosen kernel, the cost of other configurations, and faster calls.

The cost models predict all of it from a problem and an arch. Only ``recorded`` was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from matmill.analysis.candidates import Candidate, candidates
from matmill.analysis.changes import Change, changes
from matmill.analysis.floor import Floor, floor
from matmill.analysis.recorded import Recorded, nearest
from matmill.analysis.runner_ups import RunnerUp, runner_ups
from matmill.arch import Arch
from matmill.choose import Choice, choose, choose_transpose_add, entries, legal_among
from matmill.covering import covering
from matmill.kernel import Kernel
from matmill.problem import Geam, Gemm


@dataclass(frozen=True)
class Explanation:
    """The report of ``matmill why`` on one problem.

    ``legal`` are all legal configurations, those with the fastest calls first. ``ruled_out`` has the reason against
    each of the others. ``covered`` is how many of them the choice was among, those of the covering set, or None where
    it was among all; ``exhaustive_seconds`` is what the choice among all would take. ``recorded`` is the nearest
    product that was timed beside cuBLAS, or None if none is near. ``free_seconds`` is what a batch-invariant product
    would take with sums in any order, None for others.
    """

    problem: Gemm | Geam
    arch: Arch
    floor: Floor
    chosen: Candidate
    runner_ups: tuple[RunnerUp, ...]
    changes: tuple[Change, ...]
    legal: tuple[Candidate, ...]
    ruled_out: Mapping[str, str]
    covered: int | None
    exhaustive_seconds: float
    recorded: Recorded | None
    free_seconds: float | None = None

    @property
    def share(self) -> float:
        """The floor relative to the predicted time; 1 is the best that the GPU can do."""
        return self.floor.seconds / self.chosen.seconds


def explain(problem: Gemm | Geam, arch: Arch) -> Explanation:
    """Return the kernel that runs ``problem`` on ``arch``, and the reasons.

    Raises :class:`~matmill.errors.IllegalConfigError` if no kernel takes it.

    >>> from matmill.arch import get
    >>> from matmill.dtypes import F16
    >>> result = explain(Gemm(4096, 4096, 4096, F16), get("h200"))
    >>> result.chosen.kernel.entry, result.floor.bound, round(result.floor.seconds * 1e6)
    ('wgmma_gemm', 'compute: tensor cores', 139)
    """
    covered = free = None
    if isinstance(problem, Gemm):
        if problem.slice_k:
            free = choose(replace(problem, slice_k=0), arch).predicted_seconds
        choice: Choice[Any] = choose(problem, arch)
        whole: Choice[Any] = choose(problem, arch, exhaustive=True)
        tiles = covering(problem, arch)
        few = () if tiles is None else tuple(legal_among(entries(problem), problem, arch, tiles))
        covered = len(few) if choice.kernel in few else None
    else:
        whole = choice = choose_transpose_add(problem, arch)
    taken: Kernel[Any] = choice.kernel
    legal, ruled_out = candidates(entries(problem), problem, arch)
    chosen = next(one for one in legal if one.kernel == taken)
    return Explanation(
        problem,
        arch,
        floor(problem, arch, (one.config for one in legal)),
        chosen,
        runner_ups(legal, chosen),
        changes(problem, arch) if isinstance(problem, Gemm) else (),
        tuple(legal),
        ruled_out,
        covered,
        min(whole.predicted_seconds, choice.predicted_seconds),
        nearest(problem, arch) if isinstance(problem, Gemm) else None,
        free,
    )
