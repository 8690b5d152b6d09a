"""One inner product by ``matmill.inner`` and by what users have instead, timed in turns and checked against float64.

All take the same tensors of torch, so that what is timed is what a user of torch gets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from matmill.arch import Arch
from matmill.bench.calls import graph_timer, in_turns, loop_timer
from matmill.bench.clean_clock import READ_NAME, CleanClock, Reading
from matmill.bench.inner_entry import LIBRARY, OURS, WAYS
from matmill.bench.libraries.blas import CupyProduct, LibraryProduct, TorchProduct, installed
from matmill.bench.probe.samples import Runs
from matmill.bench.problems.inner import described
from matmill.bench.timing.clock import Competitor, StreamHandle
from matmill.bench.torch_matrices import TorchMatrices
from matmill.choose import choose
from matmill.errors import ArgumentError
from matmill.ops import inner
from matmill.problem import Gemm

#: Reading as many bytes as a product has, among the competitors.
ALONE = "read as many"


class OwnProduct:
    """``matmill.inner`` of two tensors of torch into a third, on torch's current stream."""

    name = OURS
    version = "matmill"

    def __init__(self, matrices: TorchMatrices) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._matrices = matrices

    def call(self) -> None:
        """Enqueues the product on torch's current stream."""
        inner(self._matrices.e, self._matrices.f, out=self._matrices.d)

    def run(self, stream: StreamHandle) -> None:
        """Enqueues it on the caller's stream."""
        with self._torch.cuda.stream(self._torch.cuda.ExternalStream(stream.address)):
            self.call()

    def result(self) -> NDArray[Any]:
        """The product, on the host."""
        self._matrices.synchronize()
        return self._matrices.result()


def products(matrices: TorchMatrices, stream: StreamHandle) -> tuple[list[LibraryProduct], list[str]]:
    """What multiplies ``matrices``, ours first, each run once; and why others do not."""
    e, f, kind = matrices.e, matrices.f, matrices.problem.dtype.numpy
    makers: dict[str, Callable[[], LibraryProduct]] = {
        OURS: lambda: OwnProduct(matrices),
        LIBRARY: lambda: TorchProduct(LIBRARY, e, f, kind),
        "torch einsum": lambda: TorchProduct("torch einsum", e, f, kind, einsum=True),
    }
    if "cupy" in installed() and kind.name != "bfloat16":  # which CuPy does not have
        makers["CuPy matmul"] = lambda: _cupy(e, f)
    found: list[LibraryProduct] = []
    absent: list[str] = []
    for name, make in makers.items():
        try:
            made = make()
            made.run(stream)
            made.result()
        except Exception as error:
            if name in {OURS, LIBRARY}:
                raise
            absent.append(f"{name}: {next(iter(str(error).splitlines()), type(error).__name__)}")
        else:
            found.append(made)
    return found, absent


def _cupy(e: Any, f: Any) -> CupyProduct:
    cupy: Any = importlib.import_module("cupy")
    return CupyProduct("CuPy matmul", cupy.from_dlpack(e), cupy.from_dlpack(f))


def compare_long(runs: Runs, reading: Reading, problem: Gemm, seed: int, *, seconds_each: float) -> dict[str, Any]:
    """Events around single calls, cold and clean L2, in turns with ``reading``; gives the entry of a record.

    ``read_seconds`` is how long reading as many bytes takes, where ``reading`` has as many, else None.
    """
    matrices = TorchMatrices(problem, seed)
    with CleanClock(runs.gpu, reading.run) as clock:
        made, absent = products(matrices, clock.stream)
        competitors = [Competitor(one.name, one.run) for one in made]
        competitors.append(Competitor(READ_NAME, reading.run))
        if problem.least_bytes <= reading.nbytes:
            competitors.append(Competitor(ALONE, reading.of(problem.least_bytes)))
        timings = clock.compare(competitors, seconds_each=seconds_each, most_rounds=15, settle=0.05, seed=seed)
    medians = {competitor.name: timing.median for competitor, timing in zip(competitors, timings, strict=True)}
    read = {"read_bytes_per_s": reading.nbytes / medians[READ_NAME], "read_seconds": medians.get(ALONE)}
    rows = []
    for one, timing in zip(made, timings, strict=False):
        errors = matrices.errors(one.result())
        rows.append({"name": one.name, "version": one.version, **asdict(errors), **asdict(timing)})
    return {**_known(problem, runs.arch), **read, "rows": rows, "absent": absent}


def compare_short(runs: Runs, problem: Gemm, seed: int) -> dict[str, Any]:
    """Replays of a graph of 20 calls, and loops of 200 plain calls with one wait, ours and torch.mm in turns."""
    torch: Any = importlib.import_module("torch")
    matrices = TorchMatrices(problem, seed)
    own = OwnProduct(matrices)
    out = torch.empty_like(matrices.d)
    calls: dict[str, Callable[[], object]] = {
        OURS: own.call,
        LIBRARY: lambda: torch.mm(matrices.e, matrices.f, out=out),
    }
    own.call()
    errors = {OURS: matrices.errors(own.result())}
    theirs = TorchProduct(LIBRARY, matrices.e, matrices.f, problem.dtype.numpy)
    theirs.run(runs.warm.stream)
    errors[LIBRARY] = matrices.errors(theirs.result())
    ways = {way: {name: timer(torch, call) for name, call in calls.items()} for way, timer in _TIMERS.items()}
    timed = {way: in_turns(timers) for way, timers in ways.items()}
    rows = [{"name": name, **asdict(errors[name]), **{way: timed[way][name] for way in timed}} for name in calls]
    return {**_known(problem, runs.arch), "rows": rows, "absent": []}


_TIMERS = dict(zip(WAYS, (graph_timer, loop_timer), strict=True))


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


def needs_torch() -> None:
    """Raises :class:`~matmill.errors.ArgumentError` where torch is not installed."""
    if LIBRARY.split(".", maxsplit=1)[0] not in installed():
        raise ArgumentError(
            argument="torch",
            got="not installed",
            wanted="torch with CUDA, whose tensors are the inputs",
            fix="Install it.",
        )
