"""Runs the rungs of a product ladder on the GPU present, interleaved with cuBLAS, and checks every one.

Percentages refer to the arch that the caller names, or else to the GPU itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from matmill.arch import Arch
from matmill.bench.baselines import LibraryProduct, cublas
from matmill.bench.clock import Clock, Competitor, StreamHandle, Timing, flush_bytes
from matmill.bench.environment import describe
from matmill.bench.inputs import Inputs, InputsBySize
from matmill.bench.ladder import cpu_row, facts, moved_to, skipped
from matmill.bench.progress import Progress, silent
from matmill.bench.results import BaselineRow, Outcome, Row
from matmill.bench.selection import nearest
from matmill.compile import compile_source
from matmill.gpu import GPU, Allocation
from matmill.kernel import GemmOperands, Rung
from matmill.problem import Gemm
from matmill.reference import Check
from matmill.source import generate

_NAN_BYTE = 0xFF  # four of them are a quiet NaN


@dataclass(frozen=True)
class _Entry:
    """One rung: its row so far and, where it can run, the size it runs at and how to enqueue it."""

    row: Row
    problem: Gemm
    run: Callable[[StreamHandle], None] | None


class _Operands:
    """The matrices of one size on the GPU."""

    def __init__(self, gpu: GPU, inputs: Inputs) -> None:
        size = inputs.problem
        self.inputs = inputs
        self.a = gpu.upload(inputs.a, "A")
        self.b = gpu.upload(inputs.b, "B")
        self.c = gpu.empty(size.m * size.n * size.dtype.itemsize)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return self.a, self.b, self.c

    def pointers(self) -> GemmOperands:
        c = self.c.pointer("C")
        return GemmOperands(a=self.a.pointer("A"), b=self.b.pointer("B"), c=c, d=c)

    def check(self) -> Check:
        size = self.inputs.problem
        return self.inputs.check(self.c.download((size.m, size.n), size.dtype.numpy))


class _Bench:
    """The GPU, and the matrices of every size in use on it."""

    def __init__(self, gpu: GPU, inputs: InputsBySize, clock: Clock) -> None:
        self.gpu = gpu
        self._inputs = inputs
        self._clock = clock
        self._operands: dict[Gemm, _Operands] = {}

    def close(self) -> None:
        for operands in self._operands.values():
            for allocation in operands.allocations:
                allocation.close()

    def prepare(self, rung: Rung[Gemm], problem: Gemm) -> _Entry:
        """Compiles a rung, runs it once on a poisoned output, and checks it."""
        gpu = self.gpu
        size, reason = nearest(rung, problem, gpu.arch)
        if size is None:
            return _Entry(skipped(rung, reason), problem, None)
        if size not in self._operands:
            self._operands[size] = _Operands(gpu, self._inputs.of(size))
        operands = self._operands[size]
        kernel = rung.kernel_for(size, gpu.arch)
        binary = compile_source(generate(kernel, size.dtype), gpu.arch.target)
        launch = kernel.launch(size, operands.pointers())
        operands.c.fill_bytes(_NAN_BYTE)
        gpu.synchronize()
        gpu.launch(binary, launch, stream=self._clock.stream)
        gpu.synchronize()
        found = operands.check()
        known = facts(rung, kernel, binary, gpu.arch, size=size, note=moved_to(size, reason))
        row = Row(**known, ok=found.ok, error_ratio=found.error_ratio)
        return _Entry(row, size, lambda stream: gpu.launch(binary, launch, stream=stream))


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
    gpu = GPU.get(0)
    refer = arch or gpu.arch
    inputs = InputsBySize(seed)
    asked = inputs.of(problem)
    with Clock(gpu, flush_bytes(gpu.arch, cold=cold)) as clock:
        bench = _Bench(gpu, inputs, clock)
        try:
            entries = []
            for done, rung in enumerate(rungs):
                progress(f"checking {rung.label}", done, len(rungs))
                entries.append(bench.prepare(rung, problem))
            library = cublas(asked.a, asked.b)
            timings, theirs = _race(entries, library, clock, seed, progress)
        finally:
            bench.close()
    baselines = [_library_row(library, theirs, asked, refer)] if library is not None and theirs is not None else []
    best = baselines[0].tflops if baselines else None
    rows = [_timed(entry, timings.get(entry.row.rung), refer, best) for entry in entries]
    baselines.append(cpu_row(asked, refer))
    notes = [f"measured on {gpu.arch.title}: medians of interleaved runs, L2 {'cold' if cold else 'warm'}"]
    if library is None:
        notes.append("no cuBLAS to compare with: install torch or CuPy with CUDA")
    if refer.name != gpu.arch.name:
        notes.append(f"percentages of peak refer to the {refer.title}, not to the GPU that ran")
    environment = {**describe(gpu=True), "seed": seed, "cold_l2": cold}
    return Outcome(
        ladder, "gpu", refer, gpu.arch.target, problem, tuple(rows), tuple(baselines), environment, tuple(notes)
    )


def _race(
    entries: Sequence[_Entry], library: LibraryProduct | None, clock: Clock, seed: int, progress: Progress
) -> tuple[dict[str, Timing], Timing | None]:
    """The timing of every rung by name, and the library's, all taken in turns."""
    competitors = [Competitor(entry.row.rung, entry.run) for entry in entries if entry.run is not None]
    if library is not None:
        competitors.append(Competitor(library.name, library.run))
    found = clock.compare(competitors, seed=seed, progress=lambda done, total: progress("timing", done, total))
    timings = {competitor.name: timing for competitor, timing in zip(competitors, found, strict=True)}
    theirs = timings.pop(library.name) if library is not None else None
    return timings, theirs


def _timed(entry: _Entry, timing: Timing | None, arch: Arch, library_tflops: float | None) -> Row:
    """The row with its time and rates; fractions compare rates, since a rung may have run at another size."""
    if timing is None:
        return entry.row
    rate = entry.problem.flops / timing.median
    return replace(
        entry.row,
        seconds=timing.median,
        tflops=rate / 1e12,
        peak_fraction=rate / arch.peak(entry.problem.dtype.name),
        library_fraction=rate / 1e12 / library_tflops if library_tflops else None,
        spread=(timing.best, timing.worst),
        rounds=timing.rounds,
    )


def _library_row(library: LibraryProduct, timing: Timing, asked: Inputs, arch: Arch) -> BaselineRow:
    found = asked.check(library.result())
    rate = asked.problem.flops / timing.median
    return BaselineRow(
        library.name,
        library.version,
        found.ok,
        found.error_ratio,
        timing.median,
        rate / 1e12,
        rate / arch.peak(asked.problem.dtype.name),
        (timing.best, timing.worst),
        timing.rounds,
    )
