"""The GPU as decisions between torch's product and matmill's see it: kernels ready to launch, and times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

import matmill
from matmill import ops
from matmill.analysis.floor import split_method
from matmill.arch import Arch
from matmill.dispatch.fast_path import Launcher
from matmill.dispatch.fast_path import torch as fast_torch
from matmill.dispatch.plan_cache import awaited, completed
from matmill.jit.background import Arrival
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from matmill.tuning import tune

#: Computes a product of tensors whose layouts are those that it was prepared for: (a, b, addend) to the result, or None
#: where these tensors need another kernel. A fourth tensor is written to, if the kernel was prepared for one.
Run: TypeAlias = Callable[..., Any]

#: Rounds of a trial, and the seconds of the GPU after which no further round begins.
_LEAST_ROUNDS, _MOST_ROUNDS, _ENOUGH_SECONDS = 5, 25, 0.03
#: Cycles that the GPU waits in front of a timed call, so that the host has enqueued it before: 100 µs or more.
_AHEAD_CYCLES = 200_000
#: Buffers of this many L2 caches are written, so that a timed call finds its operands in DRAM.
_FLUSHED_CACHES = 2


class Prepared(NamedTuple):
    """matmill's kernel for a product, compiled and loaded.

    ``workspace`` is in bytes. ``problem`` is None where the product takes several launches of different problems.
    ``method`` is how float32 elements are multiplied in pieces, or None.
    """

    run: Run
    workspace: int
    predicted_seconds: float
    problem: Gemm | None
    method: str | None = None


class CudaGPU:
    """The GPUs that torch sees."""

    #: Tells whether torch converts operands of products automatically; torch's own function costs least.
    autocast = staticmethod(torch.is_autocast_enabled)

    @staticmethod
    def serves(x: Any) -> bool:
        """Tell whether a tensor is in a GPU's memory."""
        return bool(x.is_cuda)

    @staticmethod
    def identity(x: Any) -> tuple[str, dict[str, str]]:
        """Return the name of a tensor's GPU, and the versions that decide between kernels."""
        versions = {"driver": GPU.get(x.get_device()).driver_version, "torch": torch.__version__}
        return torch.cuda.get_device_name(x.device), {**versions, "matmill": matmill.__version__}

    @staticmethod
    def arch(x: Any) -> Arch:
        """Return the arch of a tensor's GPU."""
        return GPU.get(x.get_device()).arch

    @staticmethod
    def capturing() -> bool:
        """Tell whether the current stream records a CUDA graph."""
        return bool(torch.cuda.is_current_stream_capturing())

    @staticmethod
    def mark() -> Any:
        """Return an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def between(first: Any, last: Any) -> float:
        """Return the seconds between two events."""
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    @staticmethod
    def prepare(a: Any, b: Any, addend: Any, precision: str | None, **others: Any) -> Prepared:
        """Return the kernel for ``activation(a @ b + addend)``, a bias or a C, that writes to tensors like ``out``.

        ``others`` are these two, and whether it is ``batch_invariant``. Raises the errors of :func:`matmill.matmul`.
        """
        options = _options(addend, precision) | others
        call = completed(*ops.matmul_call(a, b, **options))
        if not fast_torch.classes:
            fast_torch.enable()
        ready = call.plan.ready
        methods = (split_method(stage.problem, stage.choice.kernel.config) for stage in ready)
        return Prepared(
            Launcher(call, a.get_device(), biased=options["bias"] is not None, added=options["c"] is not None),
            call.workspace,
            sum(stage.choice.predicted_seconds * len(stage.stage.offsets) for stage in ready),
            ready[0].problem if len(ready) == 1 and isinstance(ready[0].problem, Gemm) else None,
            next(filter(None, methods), None),
        )

    @staticmethod
    def request(a: Any, b: Any, addend: Any, precision: str | None, **others: Any) -> Arrival | None:
        """Compile what the kernel of :meth:`prepare` lacks in the background; return its arrival, None if it is there.

        Raises the errors of :func:`matmill.matmul`.
        """
        options = _options(addend, precision) | others
        return awaited(*ops.matmul_call(a, b, **options))

    @staticmethod
    def batch_invariant(a: Any, b: Any, addend: Any, precision: str | None, out: Any = None) -> Any:
        """Return ``a @ b + addend`` with batch-invariant sums, by whatever kernel takes these tensors."""
        options = _options(addend, precision)
        beta = None if options["c"] is None else 1.0
        return ops.matmul(a, b, **options, beta=beta, batch_invariant=True, out=out)

    @staticmethod
    def tune(a: Any, b: Any, addend: Any, precision: str | None, *, count: int) -> None:
        """Time that many of matmill's configurations for ``a @ b + addend``, the fastest of which is then its own."""
        options = _options(addend, precision)
        tune(a, b, **options, beta=None if options["c"] is None else 1.0, candidates=count)

    @staticmethod
    def seconds(calls: Sequence[Callable[[], Any]], x: Any, nbytes: int) -> list[float]:
        """Return the median seconds of each call on the GPU of ``x``, interleaved.

        ``nbytes`` are read and written by a call. Operands are in DRAM; for those that fit into half of the L2 cache,
        the mean with the time from there counts: a program has just written some of them, and others not.
        """
        with torch.cuda.device(x.device):
            torch.cuda.synchronize()  # collectives in flight, too
            for call in calls:
                call()
            cache = torch.cuda.get_device_properties(x.device).L2_cache_size
            flush = torch.empty(_FLUSHED_CACHES * cache, dtype=torch.uint8, device=x.device)
            times = [_medians(calls, flush.zero_)]
            if nbytes <= cache // 2:
                times.append(_medians(calls, None))
        return [statistics.fmean(each) for each in zip(*times, strict=True)]


def _options(addend: Any, precision: str | None) -> dict[str, Any]:
    """Return an addend, a bias or a C, and a precision, as keywords of a product."""
    biased = addend is not None and (addend.dim() == 1 or (addend.dim() == 2 and addend.shape[0] == 1))
    return {"c": None if biased else addend, "bias": addend if biased else None, "precision": precision}


def _medians(calls: Sequence[Callable[[], Any]], flush: Callable[[], Any] | None) -> list[float]:
    """Return the median seconds of each call, after a flush, or after another run of the same call."""
    samples: list[list[float]] = [[] for _ in calls]
    total = 0.0
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and total >= _ENOUGH_SECONDS:
            break
        for call, times in zip(calls, samples, strict=True):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_AHEAD_CYCLES)  # noqa: SLF001 — torch has no public name for it
            (flush or call)()
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) / 1e3)
            total += times[-1]
    return [statistics.median(times) for times in samples]
