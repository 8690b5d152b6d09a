"""Runs the rungs of a product ladder in the emulator, and holds what runs on a GPU share with that.

The output is NaN before each rung runs, so an element that is not written cannot pass. A rung that does not take the
size asked for runs at the nearest one that it does take, and its row says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from matmill.arch import DEFAULT, Arch, get
from matmill.bench.baselines import cpu_blas
from matmill.bench.environment import describe
from matmill.bench.inputs import Inputs, InputsBySize
from matmill.bench.progress import Progress, silent
from matmill.bench.results import BaselineRow, Outcome, Row, sizes
from matmill.bench.selection import nearest
from matmill.compile import Binary, compile_source
from matmill.emulator import KernelFault, LineCounts, Memory, Report, run
from matmill.errors import EmulationError
from matmill.kernel import GemmOperands, Kernel, Rung
from matmill.ladder.memory import TransferRung
from matmill.problem import Gemm
from matmill.reference import Check
from matmill.source import generate


def emulate(
    ladder: str,
    rungs: Sequence[Rung[Gemm]],
    problem: Gemm,
    arch: Arch,
    *,
    seed: int,
    by_line: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Runs ``rungs`` in the emulator, as code for ``arch`` where the compiler knows it.

    ``by_line`` keeps the counters of every source line. Raises :class:`~matmill.errors.CompileError`.
    """
    machine = emulated_as(arch)
    inputs = InputsBySize(seed)
    rows = []
    for done, rung in enumerate(rungs):
        progress(rung.label, done, len(rungs))
        size, reason = nearest(rung, problem, machine)
        if size is None:
            rows.append(skipped(rung, reason))
            continue
        kernel = rung.kernel_for(size, machine)
        binary = compile_source(generate(kernel, size.dtype), machine.target)
        known = facts(rung, kernel, binary, arch, size=size, note=moved_to(size, reason))
        rows.append(_emulated_row(kernel, inputs.of(size), binary, known, by_line=by_line))
    progress("done", len(rungs), len(rungs))
    notes = [f"emulated: PTX for {machine.target}, run on the CPU; the emulator counts, it does not time"]
    if machine is not arch:
        notes.append(
            f"today's compiler no longer knows the {arch.title}: code for {machine.target}, occupancy by the limits of "
            f"the {arch.title}"
        )
    cpu = cpu_row(inputs.of(problem), arch)
    environment = {**describe(gpu=False), "seed": seed}
    return Outcome(ladder, "emulator", arch, machine.target, problem, tuple(rows), (cpu,), environment, tuple(notes))


def emulated_as(arch: Arch) -> Arch:
    """The arch whose code the emulator runs: the one named, or the default where the compiler is too new for it."""
    return arch if arch.compiles else get(DEFAULT)


def skipped(rung: Rung[Gemm], reason: str) -> Row:
    """The row of a rung that no size near the one asked for suits."""
    return Row(rung.label, rung.source.key, None, None, note=f"not run: {reason}, and no size near by is legal")


def facts(
    rung: Rung[Gemm] | TransferRung, kernel: Kernel[Gemm], binary: Binary, arch: Arch, *, size: Gemm, note: str = ""
) -> dict[str, Any]:
    """The fields of a row that are known before it runs; ``kernel`` is the rung's for ``size``."""
    geometry = kernel.geometry(size, kernel.config)
    x, y, z = geometry.block
    shared = binary.resources.shared + geometry.dynamic_shared
    return {
        "rung": rung.label,
        "source": rung.source.key,
        "registers": binary.resources.registers,
        "shared_bytes": shared,
        "occupancy": arch.occupancy(x * y * z, binary.resources.registers, shared),
        "problem": sizes(size),
        "note": note,
    }


def moved_to(size: Gemm, reason: str) -> str:
    """The note of a rung that runs at ``size`` because of ``reason``, which is empty where it was asked for."""
    return f"at m={size.m} n={size.n} k={size.k}: {reason}" if reason else ""


def cpu_row(inputs: Inputs, arch: Arch) -> BaselineRow:
    """The CPU's BLAS on the same matrices, timed by itself and checked."""
    cpu = cpu_blas(inputs.a, inputs.b)
    found = inputs.check(cpu.result)
    rate = inputs.problem.flops / cpu.seconds
    return BaselineRow(
        cpu.name,
        cpu.version,
        found.ok,
        found.error_ratio,
        cpu.seconds,
        rate / 1e12,
        rate / arch.peak(inputs.problem.dtype.name),
    )


def _emulated_row(kernel: Kernel[Gemm], inputs: Inputs, binary: Binary, known: dict[str, Any], *, by_line: bool) -> Row:
    """The rung's row. A kernel with asynchronous copies runs twice: they land at once, and as late as it allows."""
    try:
        found, report = _run_once(kernel, inputs, binary, late_copies=False)
        row = counted(Row(**known, ok=found.ok, error_ratio=found.error_ratio), report, by_line=by_line)
        if report.counters.cp_async_requests:
            found, report = _run_once(kernel, inputs, binary, late_copies=True)
            late = counted(Row(**known, ok=found.ok, error_ratio=found.error_ratio), report)
            row = _worse(row, late)
    except (KernelFault, EmulationError) as fault:
        note = "; ".join(filter(None, [known["note"], f"stopped: {fault}"]))
        return Row(**{**known, "note": note}, ok=False, error_ratio=None)
    return row


def _run_once(kernel: Kernel[Gemm], inputs: Inputs, binary: Binary, *, late_copies: bool) -> tuple[Check, Report]:
    size = inputs.problem
    out = np.full((size.m, size.n), np.nan, dtype=np.float32)
    memory = Memory()
    a = memory.bind("A", inputs.a, access="r")
    b = memory.bind("B", inputs.b, access="r")
    c = memory.bind("C", out, access="rw")
    launch = kernel.launch(size, GemmOperands(a=a, b=b, c=c, d=c))
    report = run(binary.ptx, launch, memory, races=True, late_copies=late_copies)
    return inputs.check(out), report


def _worse(first: Row, second: Row) -> Row:
    """Two runs of one kernel as one row: the larger error, and the hazards of both, each once."""
    ratios = (first.error_ratio or 0.0, second.error_ratio or 0.0)
    more = tuple(hazard for hazard in second.hazards if hazard not in first.hazards)
    return replace(first, ok=bool(first.ok and second.ok), error_ratio=max(ratios), hazards=(*first.hazards, *more))


def counted(row: Row, report: Report, *, by_line: bool = False) -> Row:
    """``row`` with what the emulator counted and found; a hazard makes the row fail."""
    return replace(
        row,
        ok=bool(row.ok) and report.ok,
        counters=report.counters.as_dict(),
        hazards=tuple({"kind": h.kind, "message": h.message, "where": h.where} for h in report.hazards),
        lines=_lines(report.by_line) if by_line else None,
    )


def _lines(by_line: Mapping[str, LineCounts]) -> tuple[dict[str, Any], ...]:
    """The counters of every source line, as records; what is 0 is left out."""
    counted = ((line, asdict(counts)) for line, counts in by_line.items())
    return tuple({"line": line, **{k: v for k, v in counts.items() if v}} for line, counts in counted)
