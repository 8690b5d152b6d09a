"""Runs the rungs of a ladder in the emulator.

Before each run all bits of the output are set, which is NaN in every float type, so that a missing element cannot pass.
A rung that does not take the requested size runs at the nearest one that it takes, and its row says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from matmill.arch import DEFAULT, Arch, get
from matmill.bench.environment import describe
from matmill.bench.problems.inputs import Array, Matrices
from matmill.bench.progress import Progress, silent
from matmill.emulator import Event, KernelFault, LineCounts, Memory, Report, run
from matmill.errors import EmulationError
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.jit.steps import ptx
from matmill.kernel import GemmOperands, Kernel, Rung
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.bound import bound
from matmill.ladders.runner.results import Outcome, Row
from matmill.ladders.runner.rows import facts, moved_to, promised, skipped
from matmill.ladders.runner.selection import nearest
from matmill.ladders.runner.subject import S, Subject
from matmill.ladders.runner.tally import together
from matmill.ladders.runner.traffic import async_units
from matmill.problem import Gemm
from matmill.reference import Check

#: The arithmetic of the second half of k is half of a product's, but for so much at its ends.
_ABOUT = 0.1


def emulate(
    ladder: str,
    rungs: Sequence[Rung[S]],
    problem: S,
    arch: Arch,
    *,
    seed: int,
    by_line: bool = False,
    bounds: bool = False,
    like: S | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Run ``rungs`` in the emulator, compiled for ``arch`` if the compiler supports it.

    ``by_line`` keeps the counters of every source line; ``bounds`` adds each rung's :class:`Bound`. Rungs that choose
    their constants take those for ``like``, a larger problem, where ``problem`` allows them. Raises
    :class:`~matmill.errors.CompileError`.
    """
    machine, subject = emulated_as(arch), LADDERS[ladder].subject
    inputs = subject.inputs(seed)
    inputs.of(problem)  # a size that no memory holds is refused before a rung passes it over
    rows = []
    for done, rung in enumerate(rungs):
        progress(rung.label, done, len(rungs))
        size, reason = nearest(rung, problem, arch if subject.by_arch else machine, subject)
        if size is None:
            rows.append(skipped(rung, reason))
            continue
        kernel = kernel_like(rung, size, like, machine)
        binary = compile_source(generate(kernel, size.dtype), machine.target)
        note = moved_to(problem, size, reason, subject)
        known = facts(rung, kernel, binary, arch, size=size, note=note, subject=subject)
        again = rung.label in LADDERS[ladder].same_bits
        trial = _Trial(subject, kernel, inputs.of(size), machine.target)
        row = _emulated_row(trial, known, by_line=by_line, again=again)
        rows.append(_bounded(row, trial, inputs, machine) if bounds and row.ok else row)
    progress("done", len(rungs), len(rungs))
    notes = [f"emulated: PTX for {machine.target}, run on the CPU; the emulator counts, it does not time"]
    if machine is not arch:
        notes.append(
            f"today's compiler no longer knows the {arch.title}: code for {machine.target}, occupancy by the limits of "
            f"the {arch.title}"
        )
    environment = {**describe(gpu=False), "seed": seed}
    return Outcome(ladder, "emulator", arch, machine.target, problem, tuple(rows), (), environment, tuple(notes))


def events_of(rung: Rung[S], subject: Subject[S], problem: S) -> tuple[Event, ...]:
    """Return the events of a rung's first block, with one cluster of SMs for all tiles."""
    arch = get(DEFAULT)
    kernel = rung.kernel_for(problem, arch)
    few = replace(arch, sms=prod(kernel.geometry(problem, kernel.config).cluster))
    trial = _Trial(subject, rung.kernel_for(problem, few), subject.inputs(0).of(problem), arch.target)
    return trial.run(timeline=True)[1].timeline


def emulated_as(arch: Arch) -> Arch:
    """Return the arch whose code the emulator runs: ``arch``, or the default if NVRTC no longer supports ``arch``."""
    return arch if arch.compiles else get(DEFAULT)


def kernel_like(rung: Rung[S], size: S, like: S | None, arch: Arch) -> Kernel[S]:
    """Return the rung's kernel with its constants for ``like`` if they take ``size``, else with those for ``size``."""
    large = rung.kernel_for(like or size, arch)
    return large if large.why_not(size, arch) is None else rung.kernel_for(size, arch)


@dataclass(frozen=True)
class _Trial:
    """A kernel, the GPU that it is compiled for, and its matrices."""

    subject: Subject[Any]
    kernel: Kernel[Any]
    inputs: Matrices
    target: str

    def run(
        self, *, races: bool = True, late_copies: bool = False, schedule: int = 0, timeline: bool = False
    ) -> tuple[Check, Report, Array]:
        """Return the check, the report of all launches and the output; output and workspace start with all bits set."""
        inputs, size = self.inputs, self.inputs.problem
        nbytes = size.m * size.n * size.dtype.itemsize
        out = np.full(nbytes, 0xFF, np.uint8).view(size.dtype.numpy).reshape(size.m, size.n)
        memory = Memory()
        first, second, third = inputs.names
        a = memory.bind(first, inputs.a, access="r")
        b = a if inputs.shared else memory.bind(second, inputs.b, access="r")
        c = memory.bind(third, out, access="rw")
        scratch = self.kernel.workspace(size)
        workspace = memory.bind("workspace", np.full(scratch, 0xFF, np.uint8), access="rw") if scratch else None
        counter = memory.bind("counter", np.zeros(1, np.uint32), access="rw") if self.kernel.counts(size) else None
        operands = GemmOperands(a, b, c, c, *inputs.scalars, workspace=workspace, counter=counter)
        reports = [
            run(text, launch, memory, races=races, late_copies=late_copies, schedule=schedule, timeline=timeline)
            for text, launch in ptx(self.kernel, size, operands, self.target)
        ]
        return self.subject.check(inputs, self.kernel, out), together(reports), out


def _emulated_row(trial: _Trial, known: dict[str, Any], *, by_line: bool, again: bool) -> Row:
    """Return the rung's row. A kernel with asynchronous copies or products runs twice: early, and as late as it allows.

    With ``again`` it runs in two orders of its warps, and the bits are compared.
    """
    try:
        check, report, out = trial.run()
        row = counted(Row(**known, ok=check.ok, error_ratio=check.error_ratio), report, by_line=by_line)
        if report.counters.cp_async_requests or async_units(report.counters.as_dict()):
            check, report, _ = trial.run(late_copies=True)
            late = counted(Row(**known, ok=check.ok, error_ratio=check.error_ratio), report)
            row = _worse(row, late)
        if again:
            check, report, other = trial.run(schedule=1)
            shuffled = counted(Row(**known, ok=check.ok, error_ratio=check.error_ratio), report)
            row = promised(_worse(row, shuffled), same=out.tobytes() == other.tobytes())
    except (KernelFault, EmulationError) as fault:
        note = "; ".join(filter(None, [known["note"], f"stopped: {fault}"]))
        return Row(**{**known, "note": note}, ok=False, error_ratio=None)
    return row


def _bounded(row: Row, trial: _Trial, inputs: Any, arch: Arch) -> Row:
    """Return ``row`` with its bound. That of a product is the bound of its loop over k: of the second half of k."""
    size, subject = trial.inputs.problem, trial.subject
    counters = dict(row.counters or {})
    if isinstance(size, Gemm) and "bytes" not in subject.fields:
        half = subject.resized(size, size.m, size.n, size.k // 2)
        if trial.kernel.why_not(half, arch) is None:
            _, report, _ = replace(trial, inputs=inputs.of(half)).run(races=False)
            second = {name: counters[name] - count for name, count in report.counters.as_dict().items()}
            # Where half of k still takes a whole step, the product as a whole is all there is to go by.
            if abs(2 * _work(second) / _work(counters) - 1) < _ABOUT:
                counters, size = second, half
    limit = bound(counters, size, subject, arch)
    return replace(row, bound=asdict(limit) if limit else None)


def _work(counters: Mapping[str, int]) -> int:
    return counters["ffma"] + counters["matrix_flops"]


def _worse(first: Row, second: Row) -> Row:
    """Merge two runs of one kernel into one row: the larger error, and the hazards of both, each once."""
    ratios = (first.error_ratio or 0.0, second.error_ratio or 0.0)
    more = tuple(hazard for hazard in second.hazards if hazard not in first.hazards)
    return replace(first, ok=bool(first.ok and second.ok), error_ratio=max(ratios), hazards=(*first.hazards, *more))


def counted(row: Row, report: Report, *, by_line: bool = False) -> Row:
    """Return ``row`` with the emulator's counters and hazards; a hazard that is an error makes the row fail."""
    return replace(
        row,
        ok=bool(row.ok) and report.ok,
        counters=report.counters.as_dict(),
        hazards=tuple(
            {"severity": h.severity, "kind": h.kind, "message": h.message, "where": h.where} for h in report.hazards
        ),
        lines=_lines(report.by_line) if by_line else None,
    )


def _lines(by_line: Mapping[str, LineCounts]) -> tuple[dict[str, Any], ...]:
    """Return the counters of every source line as records, without zeros."""
    counted = ((line, asdict(counts)) for line, counts in by_line.items())
    return tuple({"line": line, **{k: v for k, v in counts.items() if v}} for line, counts in counted)
