"""Runs the rungs of a product ladder on the GPU present, interleaved with cuBLAS, and checks every one.

Percentages refer to the arch that the caller names, or else to the GPU itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from matmill.arch import Arch
from matmill.bench.baselines import LibraryProduct, cublas
from matmill.bench.clock import Clock, Competitor, StreamHandle, Timing, flush_bytes
from matmill.bench.environment import describe
from matmill.bench.inputs import Array, Inputs, InputsBySize
from matmill.bench.ladder import cpu_rows, facts, moved_to, promised, skipped
from matmill.bench.peers import peers
from matmill.bench.progress import Progress, silent
from matmill.bench.results import BaselineRow, Outcome, Row
from matmill.bench.selection import nearest
from matmill.bench.subject import TRAFFIC, Subject, subject_of
from matmill.compile import Binary, compile_source
from matmill.gpu import GPU, Allocation
from matmill.kernel import GemmOperands, Kernel, Rung
from matmill.problem import Gemm
from matmill.source import generate

_NAN_BYTE = 0xFF  # four of them are a quiet NaN


@dataclass(frozen=True)
class _Entry:
    """One rung: its row so far and, where it can run, the size it runs at and how to enqueue it."""

    row: Row
    problem: Gemm
    run: Callable[[StreamHandle], None] | None


class _Operands:
    """The matrices of one problem on the GPU."""

    def __init__(self, inputs: Inputs, a: Allocation, b: Allocation, c: Allocation) -> None:
        self.inputs = inputs
        self._a, self._b = a.pointer("A"), b.pointer("B")
        self.c = c

    def pointers(self, workspace: Allocation | None) -> GemmOperands:
        c = self.c.pointer("C")
        scratch = None if workspace is None else workspace.pointer("workspace")
        return GemmOperands(a=self._a, b=self._b, c=c, d=c, workspace=scratch)

    def result(self) -> Array:
        size = self.inputs.problem
        return self.c.download((size.m, size.n), size.dtype.numpy)


class _Bench:
    """The GPU, and all that lies in its memory for one run."""

    def __init__(self, gpu: GPU, inputs: InputsBySize, clock: Clock, subject: Subject) -> None:
        self.gpu = gpu
        self._inputs = inputs
        self._clock = clock
        self._subject = subject
        self._operands: dict[Gemm, _Operands] = {}
        self._uploaded: dict[int, Allocation] = {}
        self._others: list[Allocation] = []

    def close(self) -> None:
        for allocation in (*self._uploaded.values(), *self._others):
            allocation.close()

    def operands(self, problem: Gemm) -> _Operands:
        """The matrices of ``problem``; those that several problems share are uploaded once."""
        if problem not in self._operands:
            inputs = self._inputs.of(problem)
            a, b = self._upload(inputs.a, "A"), self._upload(inputs.b, "B")
            c = self._empty(problem.m * problem.n * problem.dtype.itemsize)
            self._operands[problem] = _Operands(inputs, a, b, c)
        return self._operands[problem]

    def prepare(self, rung: Rung[Gemm], asked: Gemm) -> _Entry:
        """Compiles a rung, runs it once on a poisoned output and workspace, and checks it."""
        gpu, subject = self.gpu, self._subject
        size, reason = nearest(rung, asked, gpu.arch, subject)
        if size is None:
            return _Entry(skipped(rung, reason), asked, None)
        operands = self.operands(size)
        kernel = rung.kernel_for(size, gpu.arch)
        binary = compile_source(generate(kernel, size.dtype), gpu.arch.target)
        run = self._enqueuer(kernel, binary, operands)
        found = self._once(run, operands)
        check = operands.inputs.check(found)
        note = moved_to(asked, size, reason)
        known = facts(rung, kernel, binary, gpu.arch, size=size, note=note, subject=subject)
        row = Row(**known, ok=check.ok, error_ratio=check.error_ratio)
        if rung.label in subject.same_bits:
            row = promised(row, same=found.tobytes() == self._once(run, operands).tobytes())
        return _Entry(row, size, run)

    def _once(self, run: Callable[[StreamHandle], None], operands: _Operands) -> Array:
        operands.c.fill_bytes(_NAN_BYTE)
        self.gpu.synchronize()
        run(self._clock.stream)
        self.gpu.synchronize()
        return operands.result()

    def _enqueuer(self, kernel: Kernel[Gemm], binary: Binary, operands: _Operands) -> Callable[[StreamHandle], None]:
        """What enqueues all launches of ``kernel``, on a workspace of its own if it needs one."""
        size, gpu = operands.inputs.problem, self.gpu
        needed = kernel.workspace(size)
        workspace = self._empty(needed) if needed else None
        if workspace is not None:
            workspace.fill_bytes(_NAN_BYTE)
        launches = kernel.launches(size, operands.pointers(workspace))

        def run(stream: StreamHandle) -> None:
            for launch in launches:
                gpu.launch(binary, launch, stream=stream)

        return run

    def _upload(self, matrix: Array, name: str) -> Allocation:
        """A copy of ``matrix`` as it lies in memory: of its transpose where that is what is packed."""
        stored = matrix if matrix.flags.c_contiguous else matrix.T
        key = stored.ctypes.data
        if key not in self._uploaded:
            self._uploaded[key] = self.gpu.upload(np.ascontiguousarray(stored), name)
        return self._uploaded[key]

    def _empty(self, nbytes: int) -> Allocation:
        allocation = self.gpu.empty(nbytes)
        self._others.append(allocation)
        return allocation


def measure(
    ladder: str,
    rungs: Sequence[Rung[Gemm]],
    problem: Gemm,
    arch: Arch | None,
    *,
    seed: int,
    cold: bool = True,
    progress: Progress = silent,
) -> Outcome:
    """Times ``rungs`` on the GPU present in one run with cuBLAS; percentages refer to ``arch``, or else to that GPU.

    ``cold`` empties the L2 cache before every timed run. Raises :class:`~matmill.errors.NoGPUError`,
    :class:`~matmill.errors.CompileError` or :class:`~matmill.errors.LaunchError`.
    """
    gpu, subject = GPU.get(0), subject_of(ladder)
    refer = arch or gpu.arch
    inputs = InputsBySize(seed, subject.exact)
    asked = inputs.of(problem)
    with Clock(gpu, flush_bytes(gpu.arch, cold=cold)) as clock:
        bench = _Bench(gpu, inputs, clock, subject)
        try:
            entries = []
            for done, rung in enumerate(rungs):
                progress(f"checking {rung.label}", done, len(rungs))
                entries.append(bench.prepare(rung, problem))
            libraries, absent = _libraries(subject, bench, asked)
            timings, theirs = _race(entries, libraries, clock, seed, progress)
        finally:
            bench.close()
    baselines = [
        _library_row(library, timing, asked, refer, subject) for library, timing in zip(libraries, theirs, strict=True)
    ]
    best = max((base.tflops for base in baselines), default=None)
    rows = [_timed(entry, timings.get(entry.row.rung), refer, best, subject) for entry in entries]
    cpu, skipped_cpu = cpu_rows(asked, refer, subject)
    notes = [f"measured on {gpu.arch.title}: medians of interleaved runs, L2 {'cold' if cold else 'warm'}"]
    notes += [*absent, *skipped_cpu]
    if refer.name != gpu.arch.name:
        notes.append(f"percentages of {subject.limit_name} refer to the {refer.title}, not to the GPU that ran")
    environment = {**describe(gpu=True), "seed": seed, "cold_l2": cold}
    return Outcome(
        ladder, "gpu", refer, gpu.arch.target, problem, tuple(rows), (*baselines, *cpu), environment, tuple(notes)
    )


def _libraries(subject: Subject, bench: _Bench, asked: Inputs) -> tuple[list[LibraryProduct], list[str]]:
    """What to compare with, and what to say of that which is not there."""
    if subject is TRAFFIC:
        # Its inputs may fill most of the GPU: the libraries get ours instead of copies.
        operands = bench.operands(asked.problem).pointers(None)
        found, absent = peers(asked, operands.a.address, operands.b.address)
    else:
        one = cublas(asked.a, asked.b)
        found, absent = ([one] if one is not None else []), []
    return found, absent if found else [*absent, "no cuBLAS to compare with: install torch or CuPy with CUDA"]


def _race(
    entries: Sequence[_Entry], libraries: Sequence[LibraryProduct], clock: Clock, seed: int, progress: Progress
) -> tuple[dict[str, Timing], list[Timing]]:
    """The timing of every rung by name, and the libraries', all taken in turns."""
    competitors = [Competitor(entry.row.rung, entry.run) for entry in entries if entry.run is not None]
    ours = len(competitors)
    competitors += [Competitor(library.name, library.run) for library in libraries]
    found = clock.compare(competitors, seed=seed, progress=lambda done, total: progress("timing", done, total))
    timings = {competitor.name: timing for competitor, timing in zip(competitors[:ours], found, strict=False)}
    return timings, found[ours:]


def _timed(entry: _Entry, timing: Timing | None, arch: Arch, library_tflops: float | None, subject: Subject) -> Row:
    """The row with its time and rates; fractions compare rates, since a rung may have run at another size."""
    if timing is None:
        return entry.row
    rates = subject.rates(entry.problem, timing.median, arch)
    return replace(
        entry.row,
        **rates,
        library_fraction=rates["tflops"] / library_tflops if library_tflops else None,
        spread=(timing.best, timing.worst),
        rounds=timing.rounds,
    )


def _library_row(library: LibraryProduct, timing: Timing, asked: Inputs, arch: Arch, subject: Subject) -> BaselineRow:
    found = asked.check(library.result())
    return BaselineRow(
        library.name,
        library.version,
        found.ok,
        found.error_ratio,
        **subject.rates(asked.problem, timing.median, arch),
        spread=(timing.best, timing.worst),
        rounds=timing.rounds,
    )
