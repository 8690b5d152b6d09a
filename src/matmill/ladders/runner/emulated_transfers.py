"""The memory ladder: one product, three ways to move its matrices, and each phase separately.

Phases, in order: ``copy in`` brings random A and B from the host; ``fill`` overwrites A and B on the device; ``kernel``
multiplies them; ``copy out`` brings C to the host. With unified memory the copies are the host's writes and reads.
Pages move when they are touched, so part of a copy's cost appears in the phase after it. Allocation is not timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.bench.problems.inputs import F32Array, Inputs
from matmill.bench.progress import Progress, silent
from matmill.emulator import KernelFault, Memory, run
from matmill.errors import EmulationError
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.kernel import GemmOperands
from matmill.ladders.memory.rungs import Fill, TransferRung, filled
from matmill.ladders.runner.emulated import counted, emulated_as
from matmill.ladders.runner.results import Outcome, Row
from matmill.ladders.runner.rows import facts
from matmill.launch import Pointer
from matmill.problem import Gemm

PHASES = ("copy in", "fill", "kernel", "copy out")

Phases: TypeAlias = Mapping[str, Mapping[str, float | None]]


def emulate_transfers(
    rungs: Sequence[TransferRung], problem: Gemm, arch: Arch, *, seed: int, progress: Progress = silent
) -> Outcome:
    """Emulate the kernels of the memory ladder: check them, count, and report the bytes that each phase moves.

    All rungs launch the same two kernels, so the emulator runs them once for all rows.
    """
    machine = emulated_as(arch)
    progress("fill and product", 0, 1)
    row = _emulated(rungs[0], problem, machine, arch, seed)
    progress("done", 1, 1)
    moved = phases(problem, dict.fromkeys(PHASES))
    rows = tuple(replace(row, rung=rung.label, source=rung.source.key, phases=moved) for rung in rungs)
    notes = (
        f"emulated: PTX for {machine.target}, run on the CPU; there is no bus to time, so phases show the bytes moved",
        "all rungs launch the same two kernels: the counters are those of the product",
    )
    environment = {**describe(gpu=False), "seed": seed}
    return Outcome("memory", "emulator", arch, machine.target, problem, rows, (), environment, notes)


def phases(problem: Gemm, seconds: Mapping[str, float | None]) -> Phases:
    """Return each phase with its seconds, bytes and operations."""
    item = problem.dtype.itemsize
    inputs = float(item * (problem.m * problem.k + problem.k * problem.n))
    moved = {"copy in": inputs, "fill": inputs, "kernel": 0.0, "copy out": float(item * problem.m * problem.n)}
    return {
        name: {
            "seconds": seconds[name],
            "bytes": moved[name],
            "flops": float(problem.flops) if name == "kernel" else 0.0,
        }
        for name in PHASES
    }


def fills(problem: Gemm, seed: int) -> tuple[Fill, Fill]:
    """Return the numbers that the device writes to A and B, different ones for each."""
    return (
        Fill(problem.m, problem.k, seed=2 * seed % 2**32),
        Fill(problem.k, problem.n, seed=(2 * seed + 1) % 2**32),
    )


def expected(problem: Gemm, seed: int) -> Inputs:
    """Return the matrices that the product multiplies after that, for the check."""
    a, b = fills(problem, seed)
    return Inputs(problem, filled(a), filled(b))


def to_fill(pointer: Pointer) -> GemmOperands:
    """Return the operands of the fill kernel, which has only an output."""
    return GemmOperands(a=pointer, b=pointer, c=pointer, d=pointer)


def _emulated(rung: TransferRung, problem: Gemm, machine: Arch, arch: Arch, seed: int) -> Row:
    fill = compile_source(generate(rung.fill, problem.dtype), machine.target)
    product = compile_source(generate(rung.product, problem.dtype), machine.target)
    known = facts(rung, rung.product, product, arch, size=problem)
    start = Inputs.random(problem, seed)
    a, b = start.a.copy(), start.b.copy()
    c: F32Array = np.full((problem.m, problem.n), np.nan, dtype=np.float32)
    memory = Memory()
    pointers = [memory.bind(name, array, access="rw") for name, array in (("A", a), ("B", b), ("C", c))]
    try:
        first = [
            run(fill.ptx, rung.fill.launch(what, to_fill(where)), memory)
            for what, where in zip(fills(problem, seed), pointers[:2], strict=True)
        ]
        operands = GemmOperands(a=pointers[0], b=pointers[1], c=pointers[2], d=pointers[2])
        report = run(product.ptx, rung.product.launch(problem, operands), memory)
    except (KernelFault, EmulationError) as fault:
        return Row(**{**known, "note": f"stopped: {fault}"}, ok=False, error_ratio=None)
    check = expected(problem, seed).check(c)
    return counted(Row(**known, ok=check.ok and all(r.ok for r in first), error_ratio=check.error_ratio), report)
