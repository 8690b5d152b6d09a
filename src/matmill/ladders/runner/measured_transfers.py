"""The memory ladder on a GPU: wall times and rates of every phase, the rungs interleaved.

The host measures wall times: each phase starts and ends with an idle GPU, so that a copy includes the driver's work on
the host.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.bench.problems.inputs import F32Array, Inputs
from matmill.bench.progress import Progress, silent
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.kernel import GemmOperands
from matmill.ladders.memory.rungs import TransferRung
from matmill.ladders.runner.emulated_transfers import PHASES, expected, fills, phases, to_fill
from matmill.ladders.runner.results import Outcome, Row
from matmill.ladders.runner.rows import cpu_row, facts
from matmill.launch import Pointer
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

_ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL: managed memory that any stream may use
#: Share of the free memory that managed memory may take: more can hang a GPU for all its users.
_MANAGED_SHARE = 0.5
_NAN_BYTE = 0xFF
_ROUNDS = 5


def measure_transfers(
    rungs: Sequence[TransferRung],
    problem: Gemm,
    arch: Arch | None,
    *,
    seed: int,
    rounds: int = _ROUNDS,
    progress: Progress = silent,
) -> Outcome:
    """Time ``rungs`` on a GPU: medians of ``rounds`` runs after one that is not counted.

    Raises :class:`~matmill.errors.NoGPUError` or :class:`~matmill.errors.LaunchError`.
    """
    gpu = GPU.get(0)
    refer = arch or gpu.arch
    start, after = Inputs.random(problem, seed), expected(problem, seed)
    rows: dict[str, Row] = {}
    live: list[tuple[TransferRung, _Transfer]] = []
    try:
        for rung in rungs:
            reason = _no_room(gpu, rung, problem)
            if reason is None:
                live.append((rung, _Transfer(gpu, rung, problem, start, seed)))
            else:
                rows[rung.label] = Row(rung.label, rung.source.key, None, None, note=f"not run: {reason}")
        walls: dict[str, list[dict[str, float]]] = {rung.label: [] for rung, _ in live}
        for turn in range(rounds + 1):
            for done, (rung, transfer) in enumerate(live):
                progress(rung.label, turn * len(live) + done, (rounds + 1) * len(live))
                taken = transfer.run(look=turn == 0)
                if turn:
                    walls[rung.label].append(taken)
        for rung, transfer in live:
            rows[rung.label] = _row(transfer, after, walls[rung.label], refer, gpu.arch)
    finally:
        for _, transfer in live:
            transfer.close()
    cpu = cpu_row(start, refer)
    notes = (
        f"measured on {gpu.arch.title}: medians of {rounds} interleaved runs, walls as the host sees them",
        "TFLOP/s over the whole wall is in --json; the kernel phase shows the kernel's own rate",
    )
    environment = {**describe(gpu=True), "seed": seed}
    ordered = tuple(rows[rung.label] for rung in rungs)
    return Outcome("memory", "gpu", refer, gpu.arch.target, problem, ordered, (cpu,), environment, notes)


def _no_room(gpu: GPU, rung: TransferRung, problem: Gemm) -> str | None:
    """Return why a rung with managed memory must not run, or None."""
    if rung.transfer != "unified":
        return None
    item = problem.dtype.itemsize
    needed = item * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
    gpu.call("cuCtxSynchronize")
    free = int(gpu.call("cuMemGetInfo"))
    if needed > _MANAGED_SHARE * free:
        return f"{needed} bytes of managed memory wanted, and no more than half of the {free} free bytes are safe"
    return None


@dataclass(frozen=True)
class _Matrix:
    """One matrix: the host's view and its device address. In unified memory both are the same bytes."""

    host: F32Array
    address: int


class _Transfer:
    """The matrices of one rung, in its kind of memory, and a run of its phases."""

    def __init__(self, gpu: GPU, rung: TransferRung, problem: Gemm, start: Inputs, seed: int) -> None:
        self._gpu = gpu
        self.rung = rung
        self._problem = problem
        self._start = start
        self._seed = seed
        self._unified = rung.transfer == "unified"
        self.fill = compile_source(generate(rung.fill, problem.dtype), gpu.arch.target)
        self.product = compile_source(generate(rung.product, problem.dtype), gpu.arch.target)
        shapes = ((problem.m, problem.k), (problem.k, problem.n), (problem.m, problem.n))
        with ExitStack() as frees:  # frees the earlier ones if a later one fails
            self._matrices = [self._allocate(shape, frees) for shape in shapes]
            self._frees = frees.pop_all()
        if not self._unified:  # with unified memory the host's writing is the copy, and is timed
            self._matrices[0].host[:] = start.a
            self._matrices[1].host[:] = start.b
        self.arrived = True
        self.result: F32Array = np.empty(shapes[2], dtype=np.float32)

    def close(self) -> None:
        """Free all matrices."""
        self._matrices = []
        self._frees.close()

    def run(self, *, look: bool) -> dict[str, float]:
        """Return the seconds of every phase; the product is in ``result`` afterwards.

        ``look`` also compares the device's inputs with the host's and stores the outcome in ``arrived``. Timed runs do
        not do so, since it may move pages of unified memory.
        """
        a, b, c = self._matrices
        self._poison(c)
        taken = {"copy in": self._wall(self._copy_in)}
        if look:
            self.arrived = self._came(a, self._start.a) and self._came(b, self._start.b)
        taken["fill"] = self._wall(self._launch_fills)
        taken["kernel"] = self._wall(self._launch_product)
        taken["copy out"] = self._wall(self._copy_out)
        return taken

    def _wall(self, phase: Callable[[], None]) -> float:
        self._gpu.synchronize()
        begin = time.perf_counter()
        phase()
        self._gpu.synchronize()
        return time.perf_counter() - begin

    def _copy_in(self) -> None:
        for matrix, values in zip(self._matrices[:2], (self._start.a, self._start.b), strict=True):
            if self._unified:
                np.copyto(matrix.host, values)
            else:
                self._gpu.call("cuMemcpyHtoD", matrix.address, matrix.host.ctypes.data, matrix.host.nbytes)

    def _launch_fills(self) -> None:
        for what, matrix, name in zip(fills(self._problem, self._seed), self._matrices, ("A", "B"), strict=False):
            self._gpu.launch(self.fill, self.rung.fill.launch(what, to_fill(Pointer(name, matrix.address))))

    def _launch_product(self) -> None:
        a, b, c = (Pointer(name, m.address) for name, m in zip("ABC", self._matrices, strict=True))
        self._gpu.launch(self.product, self.rung.product.launch(self._problem, GemmOperands(a=a, b=b, c=c, d=c)))

    def _copy_out(self) -> None:
        c = self._matrices[2]
        if self._unified:
            np.copyto(self.result, c.host)
        else:
            self._gpu.call("cuMemcpyDtoH", c.host.ctypes.data, c.address, c.host.nbytes)
            self.result = c.host

    def _poison(self, c: _Matrix) -> None:
        """Fill C with NaN on both sides, so that neither an idle kernel nor a missing copy can pass."""
        self._gpu.call("cuMemsetD8", c.address, _NAN_BYTE, c.host.nbytes)
        self._gpu.synchronize()
        if not self._unified:
            c.host.fill(np.nan)

    def _came(self, matrix: _Matrix, sent: F32Array) -> bool:
        """Tell whether the device holds the matrix that the host sent; not timed."""
        back = np.empty_like(sent)
        self._gpu.call("cuMemcpyDtoH", back.ctypes.data, matrix.address, back.nbytes)
        return bool(np.array_equal(back, sent))

    def _allocate(self, shape: tuple[int, int], frees: ExitStack) -> _Matrix:
        nbytes = 4 * shape[0] * shape[1]
        call = self._gpu.call
        how = ("cuMemAllocManaged", nbytes, _ATTACH_GLOBAL) if self._unified else ("cuMemAlloc", nbytes)
        address = int(call(*how))
        frees.callback(call, "cuMemFree", address)
        if self._unified:
            return _Matrix(_view(address, shape), address)
        if self.rung.transfer == "pinned":
            host = int(call("cuMemAllocHost", nbytes))
            frees.callback(call, "cuMemFreeHost", host)
            return _Matrix(_view(host, shape), address)
        return _Matrix(np.empty(shape, dtype=np.float32), address)


def _view(address: int, shape: tuple[int, int]) -> F32Array:
    """Return host memory that the driver allocated, as an array; the caller keeps it alive."""
    buffer = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
    return np.ctypeslib.as_array(buffer).reshape(shape)


def _row(transfer: _Transfer, after: Inputs, walls: Sequence[dict[str, float]], refer: Arch, ran: Arch) -> Row:
    problem, rung = after.problem, transfer.rung
    check = after.check(transfer.result)
    totals = [sum(wall.values()) for wall in walls]
    wall = statistics.median(totals)
    lost = "" if transfer.arrived else "what the device held after the copy in was not what the host had sent"
    return Row(
        **facts(rung, rung.product, transfer.product, ran, size=problem, note=lost),
        ok=check.ok and transfer.arrived,
        error_ratio=check.error_ratio,
        seconds=wall,
        tflops=problem.flops / wall / 1e12,
        peak_fraction=problem.flops / wall / refer.peak(problem.dtype.name),
        spread=(min(totals), max(totals)),
        rounds=len(totals),
        phases=phases(problem, {name: statistics.median(wall[name] for wall in walls) for name in PHASES}),
    )
