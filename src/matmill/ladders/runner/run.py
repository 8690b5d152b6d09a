"""Runs any ladder, on a GPU or in the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matmill.arch import DEFAULT, Arch, get
from matmill.bench.progress import Progress
from matmill.ladders.memory.rungs import TransferRung
from matmill.ladders.runner.emulated import emulate
from matmill.ladders.runner.emulated_transfers import emulate_transfers
from matmill.ladders.runner.ladder import On
from matmill.ladders.runner.measured import measure
from matmill.ladders.runner.measured_transfers import measure_transfers
from matmill.ladders.runner.results import Outcome
from matmill.problem import Geam, Gemm


def run(
    ladder: str,
    rungs: Sequence[Any],
    problem: Gemm | Geam,
    on: On,
    arch: Arch | None,
    *,
    seed: int,
    cold: bool,
    by_line: bool,
    bounds: bool,
    like: Any,
    progress: Progress,
) -> Outcome:
    """Check ``rungs`` of a ladder on one problem, and time them on a GPU or count their accesses in the emulator.

    Percentages refer to ``arch``: by default the GPU present, else :data:`~matmill.arch.DEFAULT`. ``cold`` empties the
    L2 cache before every timed run; ``by_line``, ``bounds`` and ``like`` are :func:`emulate`'s. The memory ladder's
    rungs are compared by their transfers, and take none of them.
    """
    machine = arch or get(DEFAULT)
    if isinstance(problem, Gemm) and all(isinstance(rung, TransferRung) for rung in rungs):
        if on == "gpu":
            return measure_transfers(rungs, problem, arch, seed=seed, progress=progress)
        return emulate_transfers(rungs, problem, machine, seed=seed, progress=progress)
    if on == "gpu":
        return measure(ladder, rungs, problem, arch, seed=seed, cold=cold, progress=progress)
    return emulate(
        ladder, rungs, problem, machine, seed=seed, by_line=by_line, bounds=bounds, like=like, progress=progress
    )
