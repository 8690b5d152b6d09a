"""Runs the rungs of a ladder on a GPU, interleaved with libraries, and checks every one.

Percentages refer to the arch that the caller names, or else to the GPU itself: to its data sheet or, for problems that
only move bytes, to a copy timed in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from matmill.arch import Arch, measured
from matmill.bench import units
from matmill.bench.environment import describe
from matmill.bench.libraries.blas import LibraryProduct
from matmill.bench.problems.inputs import Array, Matrices
from matmill.bench.progress import Progress, silent
from matmill.bench.timing.device_copy import COPY_NAME, Copying
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.jit.steps import binaries
from matmill.kernel import GemmOperands, Kernel, Rung
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.ladder import Ladder
from matmill.ladders.runner.results import BaselineRow, Outcome, Row
from matmill.ladders.runner.rows import cpu_rows, facts, moved_to, promised, skipped
from matmill.ladders.runner.selection import nearest
from matmill.ladders.runner.subject import S, Subject, beside_copy
from matmill.problem import Geam, Gemm
from matmill.reference import Check
from matmill.runtime.clock import Clock, Competitor, StreamHandle, Timing, flush_bytes
from matmill.runtime.gpu import GPU
from matmill.runtime.memory import Allocation

_WORD = 4  # bytes
_NAN_BYTE = 0xFF  # bytes that form a quiet NaN in any float type


@dataclass(frozen=True)
class _Entry(Generic[S]):
    """One rung: its row so far and, if it can run, its size and the function that enqueues it."""

    row: Row
    problem: S
    run: Callable[[StreamHandle], None] | None


class _Operands:
    """The matrices of one problem on the GPU."""

    def __init__(self, inputs: Matrices, a: Allocation, b: Allocation, c: Allocation) -> None:
        self.inputs = inputs
        self._a, self._b = a.pointer(inputs.names[0]), b.pointer(inputs.names[1])
        self.c = c

    def pointers(self, workspace: Allocation | None, counter: Allocation | None) -> GemmOperands:
        c = self.c.pointer(self.inputs.names[2])
        scratch = None if workspace is None else workspace.pointer("workspace")
        word = None if counter is None else counter.pointer("counter")
        return GemmOperands(self._a, self._b, c, c, *self.inputs.scalars, workspace=scratch, counter=word)

    def result(self) -> Array:
        size = self.inputs.problem
        return self.c.download((size.m, size.n), size.dtype.numpy)


class _Bench(Generic[S]):
    """The GPU, and everything that it holds for one run."""

    def __init__(self, gpu: GPU, inputs: Any, clock: Clock, ladder: Ladder[S]) -> None:
        self.gpu = gpu
        self._inputs = inputs
        self._clock = clock
        self._ladder: Ladder[S] = ladder
        self._operands: dict[S, _Operands] = {}
        self._uploaded: dict[int, Allocation] = {}
        self._others: list[Allocation] = []

    def close(self) -> None:
        for allocation in (*self._uploaded.values(), *self._others):
            allocation.close()

    def operands(self, problem: S) -> _Operands:
        """Return the matrices of ``problem``; those that problems share are uploaded once."""
        if problem not in self._operands:
            inputs: Matrices = self._inputs.of(problem)
            a, b = (
                self._upload(matrix, name) for matrix, name in zip((inputs.a, inputs.b), inputs.names, strict=False)
            )
            output = inputs.problem
            c = self._kept(self.gpu.empty(output.m * output.n * output.dtype.itemsize))
            self._operands[problem] = _Operands(inputs, a, b, c)
        return self._operands[problem]

    def prepare(self, rung: Rung[S], problem: S) -> _Entry[S]:
        """Compile a rung, run it once on a poisoned output and workspace, and check it."""
        gpu, subject = self.gpu, self._ladder.subject
        size, reason = nearest(rung, problem, gpu.arch, subject)
        if size is None:
            return _Entry(skipped(rung, reason), problem, None)
        operands = self.operands(size)
        kernel = rung.kernel_for(size, gpu.arch)
        binary = compile_source(generate(kernel, size.dtype), gpu.arch.target)
        run = self._enqueuer(kernel, operands)
        result = self._once(run, operands)
        check = subject.check(operands.inputs, kernel, result)
        note = moved_to(problem, size, reason, subject)
        known = facts(rung, kernel, binary, gpu.arch, size=size, note=note, subject=subject)
        row = Row(**known, ok=check.ok, error_ratio=check.error_ratio)
        if rung.label in self._ladder.same_bits:
            row = promised(row, same=result.tobytes() == self._once(run, operands).tobytes())
        return _Entry(row, size, run)

    def _once(self, run: Callable[[StreamHandle], None], operands: _Operands) -> Array:
        operands.c.fill_bytes(_NAN_BYTE)
        self.gpu.synchronize()
        run(self._clock.stream)
        self.gpu.synchronize()
        return operands.result()

    def _enqueuer(self, kernel: Kernel[S], operands: _Operands) -> Callable[[StreamHandle], None]:
        """Return a function that enqueues all launches of ``kernel``, with their workspace and counter, if needed."""
        size, gpu = operands.inputs.problem, self.gpu
        needed = kernel.workspace(size)
        workspace = self._kept(gpu.empty(needed)) if needed else None
        if workspace is not None:
            workspace.fill_bytes(_NAN_BYTE)
        counter = self._kept(gpu.zeros(_WORD)) if kernel.counts(size) else None
        steps = binaries(kernel, size, operands.pointers(workspace, counter), gpu.arch.target)

        def run(stream: StreamHandle) -> None:
            for binary, launch in steps:
                gpu.launch(binary, launch, stream=stream)

        return run

    def _upload(self, matrix: Array, name: str) -> Allocation:
        """Upload ``matrix`` as it is stored: its transpose, if that is packed."""
        stored = matrix if matrix.flags.c_contiguous else matrix.T
        key = stored.ctypes.data
        if key not in self._uploaded:
            self._uploaded[key] = self.gpu.upload(np.ascontiguousarray(stored), name)
        return self._uploaded[key]

    def _kept(self, allocation: Allocation) -> Allocation:
        self._others.append(allocation)
        return allocation


def measure(
    ladder: str,
    rungs: Sequence[Rung[Any]],
    problem: Gemm | Geam,
    arch: Arch | None,
    *,
    seed: int,
    cold: bool = True,
    progress: Progress = silent,
) -> Outcome:
    """Time ``rungs`` on a GPU in one run with libraries.

    Percentages refer to ``arch``, or else to the GPU itself. With ``cold`` the L2 cache is emptied before every timed
    run. Raises :class:`~matmill.errors.NoGPUError`, :class:`~matmill.errors.CompileError` or
    :class:`~matmill.errors.LaunchError`.
    """
    gpu, record = GPU.get(0), LADDERS[ladder]
    subject = record.subject
    refer = arch or gpu.arch
    inputs = subject.inputs(seed)
    matrices: Matrices = inputs.of(problem)
    with ExitStack() as held:
        clock = held.enter_context(Clock(gpu, flush_bytes(gpu.arch, cold=cold)))
        bench = _Bench(gpu, inputs, clock, record)
        held.callback(bench.close)
        copying = held.enter_context(Copying(gpu, subject.amount(problem))) if subject.copied else None
        entries = []
        for done, rung in enumerate(rungs):
            progress(f"checking {rung.label}", done, len(rungs))
            entries.append(bench.prepare(rung, problem))
        libraries, absent = _libraries(record, bench, matrices)
        others = [Competitor(one.name, one.run) for one in libraries]
        others += [Competitor(COPY_NAME, copying.run)] if copying else []
        timings, theirs = _race(entries, others, clock, seed, progress)
        # Checked while the GPU still holds the results: the check covers the last timed run of a library.
        checks = [subject.check(matrices, library, library.result()) for library in libraries]
    limit, notes_of_copy = _copy_limit(copying, theirs[-1].median, gpu.arch, refer) if copying else (None, [])
    if limit is not None:
        subject = beside_copy(subject, limit)
    baselines = [
        _library_row(library, check, timing, subject.rates(problem, timing.median, refer))
        for library, check, timing in zip(libraries, checks, theirs, strict=False)
    ]
    best = max((getattr(base, subject.compared) for base in baselines), default=None)
    rows = [_timed(entry, timings.get(entry.row.rung), refer, best, subject) for entry in entries]
    cpu, skipped_cpu = cpu_rows(matrices, refer, subject)
    notes = [f"measured on {gpu.arch.title}: medians of interleaved runs, L2 {'cold' if cold else 'warm'}"]
    notes += [*notes_of_copy, *absent, *skipped_cpu]
    if refer.name != gpu.arch.name:
        notes.append(f"percentages of {subject.limit_name} refer to the {refer.title}, not to the GPU that ran")
    environment = {**describe(gpu=True), "seed": seed, "cold_l2": cold}
    return Outcome(
        ladder=ladder,
        on="gpu",
        arch=refer,
        target=gpu.arch.target,
        problem=problem,
        rows=tuple(rows),
        baselines=(*baselines, *cpu),
        environment=environment,
        notes=tuple(notes),
        copy_bytes_per_s=limit,
    )


def _copy_limit(copying: Copying, seconds: float, ran: Arch, refer: Arch) -> tuple[float | None, list[str]]:
    """Return the bandwidth of a copy that percentages refer to, or None for the data sheet's, and notes about it."""
    rate = copying.rate(seconds)
    note = f"a {COPY_NAME} in the same run: {units.quantity(rate, 'B/s')}, read and written"
    if refer.name == ran.name:
        return rate, [f"{note}, which percentages refer to"]
    known = measured(refer)
    if known is None:
        return None, [note, f"percentages refer to the data sheet of the {refer.title}: nobody measured its copies"]
    return known.copy_bytes_per_s, [note, f"percentages refer to copies on a {refer.title}, measured {known.date}"]


def _libraries(ladder: Ladder[Any], bench: _Bench[Any], given: Any) -> tuple[Sequence[LibraryProduct], list[str]]:
    """Return the libraries to compare with, and why others are missing."""
    # The inputs may fill most of the GPU: the libraries use our copies.
    operands = bench.operands(given.problem).pointers(None, None)
    peers, absent = ladder.libraries(given, operands.a.address, operands.b.address)
    return peers, absent if peers or not ladder.no_libraries else [*absent, ladder.no_libraries]


def _race(
    entries: Sequence[_Entry[Any]], others: Sequence[Competitor], clock: Clock, seed: int, progress: Progress
) -> tuple[dict[str, Timing], list[Timing]]:
    """Return the timing of every rung by name, and those of ``others``, interleaved."""
    competitors = [Competitor(entry.row.rung, entry.run) for entry in entries if entry.run is not None]
    ours = len(competitors)
    times = clock.compare(
        [*competitors, *others], seed=seed, progress=lambda done, total: progress("timing", done, total)
    )
    timings = {competitor.name: timing for competitor, timing in zip(competitors, times, strict=False)}
    return timings, times[ours:]


def _timed(entry: _Entry[Any], timing: Timing | None, arch: Arch, best: float | None, subject: Subject[Any]) -> Row:
    """Return the row with its time and rates. Fractions compare rates, because a rung may have run at another size."""
    if timing is None:
        return entry.row
    rates = subject.rates(entry.problem, timing.median, arch)
    return replace(
        entry.row,
        **rates,
        library_fraction=rates[subject.compared] / best if best else None,
        spread=(timing.best, timing.worst),
        rounds=timing.rounds,
    )


def _library_row(library: LibraryProduct, check: Check, timing: Timing, rates: dict[str, Any]) -> BaselineRow:
    return BaselineRow(
        library.name,
        library.version,
        check.ok,
        check.error_ratio,
        **rates,
        spread=(timing.best, timing.worst),
        rounds=timing.rounds,
    )
