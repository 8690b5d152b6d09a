"""Rows of a ladder's run: the code that the emulator and a GPU share, and the CPU's beside a GPU's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matmill.arch import Arch
from matmill.bench import units
from matmill.bench.libraries.blas import cpu_blas, cpu_estimate
from matmill.bench.problems.inputs import Inputs
from matmill.jit.compile import Binary
from matmill.kernel import Kernel, Rung
from matmill.ladders.memory.rungs import TransferRung
from matmill.ladders.runner.results import BaselineRow, Row
from matmill.ladders.runner.subject import ARITHMETIC, S, Subject


def skipped(rung: Rung[S], reason: str) -> Row:
    """Return the row of a rung that takes no size near the requested one."""
    return Row(rung.label, rung.source.key, None, None, note=f"not run: {reason}, and no size near by is legal")


def facts(
    rung: Rung[S] | TransferRung,
    kernel: Kernel[S],
    binary: Binary,
    arch: Arch,
    *,
    size: S,
    note: str = "",
    subject: Subject[Any] = ARITHMETIC,
) -> dict[str, Any]:
    """Return the fields of a row that do not depend on a run; ``kernel`` is the rung's for ``size``."""
    geometry = kernel.geometry(size, kernel.config)
    x, y, z = geometry.block
    shared = binary.resources.shared + geometry.dynamic_shared
    return {
        "rung": rung.label,
        "source": rung.source.key,
        "registers": binary.resources.registers,
        "shared_bytes": shared,
        "occupancy": arch.occupancy(x * y * z, binary.resources.registers, shared),
        "problem": subject.record(size),
        "note": note,
        **subject.derived_fields(size),
    }


def moved_to(problem: S, size: S, reason: str, subject: Subject[S]) -> str:
    """Return the note of a rung that runs at ``size`` because of ``reason``, which is empty for the requested size."""
    if subject.sizes(size) == subject.sizes(problem):
        return reason
    return f"at {subject.format_sizes(size)}: {reason}"


def cpu_row(inputs: Inputs, arch: Arch, subject: Subject[Any] = ARITHMETIC) -> BaselineRow:
    """Return the row of the CPU's BLAS on the same matrices, timed separately and checked."""
    cpu = cpu_blas(inputs.a, inputs.b)
    check = inputs.check(cpu.result)
    rates = subject.rates(inputs.problem, cpu.seconds, arch)
    return BaselineRow(cpu.name, cpu.version, check.ok, check.error_ratio, **rates)


def cpu_rows(inputs: Any, arch: Arch, subject: Subject[Any]) -> tuple[tuple[BaselineRow, ...], list[str]]:
    """Return the CPU's row, or none and the reason: no BLAS for the type, or a longer time than the subject allows."""
    if not subject.cpu:
        return (), []
    if inputs.problem.dtype.wider is not None:
        return (), [f"no row for the CPU: its BLAS has no {inputs.problem.dtype.name}"]
    if subject.cpu_patience is not None:
        estimate = cpu_estimate(inputs.a, inputs.b)
        if estimate > subject.cpu_patience:
            return (), [f"no row for the CPU: its BLAS would take about {units.seconds(estimate)}"]
    return (cpu_row(inputs, arch, subject),), []


def promised(row: Row, *, same: bool) -> Row:
    """Return the row of a rung that promises the same bits in every run, after its second run."""
    note = "two runs gave the same bits" if same else "two runs gave different bits"
    return replace(row, ok=bool(row.ok) and same, note="; ".join(filter(None, [row.note, note])))
