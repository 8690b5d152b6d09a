"""What differs in the comparison of ``matmill.inner`` with what users have instead: checked against float64.

All take the same tensors of torch, so that what is timed is what a user of torch gets.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from numpy.typing import NDArray

from lab.calls import by_every_way
from lab.clean_clock import READ_NAME, CleanClock, Reading
from lab.compare import Comparison, Run, Shown, needed
from lab.compiler import KernelCompiler, add_workers
from lab.inner.groups import GROUPS, problems
from lab.inner.matrices import InnerMatrices
from lab.inner.report import FORMAT, HEADINGS, LIBRARY, OURS, cells, entries, rows_of, said, slower
from matmill.arch import Arch
from matmill.bench.libraries.blas import CupyProduct, LibraryProduct, TorchProduct, installed
from matmill.bench.libraries.gemm import BFLOAT, tried
from matmill.bench.libraries.torch_cupy import TorchCalls
from matmill.bench.probe.samples import Runs
from matmill.bench.timing.clock import Competitor, StreamHandle
from matmill.choose import choose
from matmill.kernel import Kernel
from matmill.kernels.inner import INNER
from matmill.ladders.inner.subject import described
from matmill.ops import inner
from matmill.problem import Gemm

#: Reading as many bytes as a product has, among the competitors.
ALONE = "read as many"
#: Products whose shares are told, those farthest from their limit.
_TOLD = 8


class OwnProduct:
    """``matmill.inner`` of two tensors of torch into a third, on torch's current stream."""

    name = OURS
    version = "matmill"

    def __init__(self, matrices: InnerMatrices) -> None:
        self._calls = TorchCalls()
        self._matrices = matrices

    def call(self) -> None:
        """Enqueue the product on torch's current stream."""
        inner(self._matrices.e, self._matrices.f, out=self._matrices.out)

    def run(self, stream: StreamHandle) -> None:
        """Enqueue it on the caller's stream."""
        with self._calls.on(stream):
            self.call()

    def result(self) -> NDArray[Any]:
        """Return the product, on the host."""
        self._matrices.synchronize()
        return self._matrices.result()


def products(matrices: InnerMatrices, stream: StreamHandle) -> tuple[list[LibraryProduct], list[str]]:
    """Return what multiplies ``matrices``, ours first, each run once; and why others do not.

    Raises :class:`~matmill.errors.ArgumentError` where ours or torch.mm does not.
    """
    e, f, kind = matrices.e, matrices.f, matrices.problem.dtype.numpy
    makers: dict[str, Callable[[], LibraryProduct]] = {
        OURS: lambda: OwnProduct(matrices),
        LIBRARY: lambda: TorchProduct(LIBRARY, e, f, kind),
        "torch einsum": lambda: TorchProduct("torch einsum", e, f, kind, einsum=True),
    }
    if "cupy" in installed() and kind.name != BFLOAT:  # which CuPy does not have
        makers["CuPy matmul"] = lambda: _cupy(e, f)
    result, absent = tried(makers, stream)
    needed(result, absent, OURS, LIBRARY)
    return result, absent


def _cupy(e: Any, f: Any) -> CupyProduct:
    cupy: Any = importlib.import_module("cupy")
    return CupyProduct("CuPy matmul", cupy.from_dlpack(e), cupy.from_dlpack(f))


def compare_long(runs: Runs, reading: Reading, problem: Gemm, seed: int, *, seconds_each: float) -> dict[str, Any]:
    """Time single calls by events, cold and clean L2, interleaved with ``reading``; give the entry of a record.

    ``read_seconds`` is how long reading as many bytes takes, where ``reading`` has as many, else None.
    """
    matrices = InnerMatrices(problem, seed)
    with CleanClock(runs.gpu, reading.run) as clock:
        result, absent = products(matrices, clock.stream)
        competitors = [Competitor(one.name, one.run) for one in result]
        competitors.append(Competitor(READ_NAME, reading.run))
        if problem.least_bytes <= reading.nbytes:
            competitors.append(Competitor(ALONE, reading.of(problem.least_bytes)))
        timings = clock.compare(competitors, seconds_each=seconds_each, most_rounds=15, settle=0.05, seed=seed)
    medians = {competitor.name: timing.median for competitor, timing in zip(competitors, timings, strict=True)}
    read = {"read_bytes_per_s": reading.nbytes / medians[READ_NAME], "read_seconds": medians.get(ALONE)}
    rows = []
    for one, timing in zip(result, timings, strict=False):
        errors = matrices.errors(one.result())
        rows.append({"name": one.name, "version": one.version, **asdict(errors), **asdict(timing)})
    return {**_known(problem, runs.arch), **read, "rows": rows, "absent": absent}


def compare_short(runs: Runs, problem: Gemm, seed: int) -> dict[str, Any]:
    """Time replays of a graph of 20 calls, and loops of 200 plain calls with one wait, beside torch.mm."""
    matrices = InnerMatrices(problem, seed)
    torch, own = matrices.torch, OwnProduct(matrices)
    out = torch.empty_like(matrices.out)
    calls: dict[str, Callable[[], object]] = {
        OURS: own.call,
        LIBRARY: lambda: torch.mm(matrices.e, matrices.f, out=out),
    }
    own.call()
    errors = {OURS: matrices.errors(own.result())}
    theirs = TorchProduct(LIBRARY, matrices.e, matrices.f, problem.dtype.numpy)
    theirs.run(runs.warm.stream)
    errors[LIBRARY] = matrices.errors(theirs.result())
    timed = by_every_way(torch, calls)
    rows = [{"name": name, **asdict(errors[name]), **{way: timed[way][name] for way in timed}} for name in calls]
    return {**_known(problem, runs.arch), "rows": rows, "absent": []}


def _known(problem: Gemm, arch: Arch) -> dict[str, Any]:
    choice = choose(problem, arch)
    return {
        "problem": described(problem),
        "bytes": problem.least_bytes,
        "flops": problem.flops,
        "fma_flops": arch.peak(problem.dtype.name),
        "kernel": choice.kernel.entry,
        "config": str(choice.kernel.config),
        "predicted_seconds": choice.predicted_seconds,
    }


@contextmanager
def _session(run: Run[Gemm]) -> Iterator[Callable[[str, Gemm], dict[str, Any]]]:
    """Order all kernels at first, and wait for each before its product is timed."""
    arch, args = run.gpu.arch, run.args
    with (
        KernelCompiler(arch.target, args.workers) as compiler,
        Runs(run.gpu) as runs,
        closing(Reading(runs)) as reading,
    ):
        for problem in (problem for group in run.problems.values() for problem in group):
            compiler.order(_compiled(problem, arch), problem.dtype)

        def compare(group: str, problem: Gemm) -> dict[str, Any]:
            for kernel in _compiled(problem, arch):
                compiler.binary(kernel, problem.dtype)
            if GROUPS[group].small:
                return compare_short(runs, problem, args.seed)
            return compare_long(runs, reading, problem, args.seed, seconds_each=args.seconds_each)

        yield compare


def _compiled(problem: Gemm, arch: Arch) -> list[Kernel[Gemm]]:
    """Return the kernel of ``problem``, where it is the inner kernel."""
    kernel = choose(problem, arch).kernel
    return [kernel] if kernel.entry == INNER.entry else []


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds-each", type=float, default=0.02, help="of timed work per competitor (default: 0.02)")
    add_workers(parser)


def _shown(record: Mapping[str, Any]) -> Shown:
    group, result = GROUPS[record["group"]], entries(record)
    made = rows_of(group, result)
    remarks = slower(made)
    if not group.small:
        for entry in sorted(result, key=lambda entry: entry.floor_share())[:_TOLD]:
            shares = f"{entry.read_share():.1%} of reading, {entry.fma_share():.1%} of FMAs"
            config = entry.record["config"]
            remarks.append(f"  {said(entry)}: {shares}, {LIBRARY}/ours {entry.speedup():.2f}; {config}")
    return Shown(group.title, HEADINGS, [cells(one) for one in made], remarks, all(entry.ok for entry in result))


COMPARISON: Comparison[Gemm] = Comparison(
    format=FORMAT,
    noun="products",
    groups={name: partial(problems, [name]) for name in GROUPS},
    add_arguments=_add_arguments,
    session=_session,
    shown=_shown,
)
