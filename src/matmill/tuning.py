"""Configurations of one product, timed on the caller's own operands: the winner is what later calls run.

:func:`tune` is public. :func:`tune_request` is the same for a request that was checked, with its operands
on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Never

from matmill.analysis.candidates import candidates as all_candidates
from matmill.analysis.candidates import label, tile
from matmill.arch import Arch
from matmill.arrays.operand import packed_strides
from matmill.arrays.overlap import bounds
from matmill.choose import Choice, Preference, choose_by_models, entries, fit_batches
from matmill.dispatch.backends import operand_addresses, uploaded
from matmill.dispatch.gemm import MATMUL
from matmill.dispatch.measured import keep
from matmill.dispatch.plan_cache import forget_plans
from matmill.dispatch.validate import Request, check_apart, validate
from matmill.errors import ArgumentError, MatmillError
from matmill.lowering import Shape, SubProblem
from matmill.ops import product_request
from matmill.plan import Plan, ready
from matmill.problem import Gemm
from matmill.runtime.clock import Clock, Competitor, flush_bytes
from matmill.runtime.gpu import GPU

#: A winner takes less than this share of the time of the model's first: less is noise.
_BETTER = 0.97
#: Seconds of timed runs a product, without the flushes between them, and most rounds.
_SECONDS, _ROUNDS = 0.05, 15
#: Seconds of work before the timed runs.
_SETTLE = 0.05


@dataclass(frozen=True)
class Row:
    """A configuration, the model's seconds, and those measured: None if it did not run, with the reason in ``why``."""

    kernel: str
    configuration: str
    predicted: float
    measured: float | None
    why: str = ""


@dataclass(frozen=True)
class Tuned:
    """The result of :func:`tune`: a row per configuration, the model's first one first, and the winner's number.

    ``kept`` tells whether later calls run another configuration than the model's first.
    """

    problem: Gemm
    rows: tuple[Row, ...]
    winner: int
    kept: bool

    @property
    def seconds(self) -> float:
        """The winner's measured seconds."""
        return self.rows[self.winner].measured or math.inf

    def __str__(self) -> str:
        best, first = self.rows[self.winner], self.rows[0]
        if self.kept:
            was = "did not run" if first.measured is None else f"took {_us(first.measured)}"
            takes = f"{best.kernel} {best.configuration} takes {_us(best.measured)}"
            head = f"{self.problem}: {takes}; the model's first {was}."
        else:
            took = f"{first.kernel} {first.configuration} in {_us(first.measured)}"
            head = f"{self.problem}: the model's first stays, {took}."
        lines = [
            f"{' *'[index == self.winner]} {_us(row.predicted):>12} predicted {_us(row.measured):>12} measured"
            f"  {row.kernel} {row.configuration}{row.why and ': ' + row.why}"
            for index, row in enumerate(self.rows)
        ]
        return "\n".join([head, *lines])


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f} us"


def tune(
    a: Any,
    b: Any,
    /,
    *misplaced: Never,
    c: Any = None,
    alpha: complex = 1.0,
    beta: complex | None = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: object = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
    candidates: int = 4,
    workspace_limit: int = 64 * 2**20,
) -> Tuned:
    """Time the best configurations for a product on a GPU; later calls of :func:`matmill.matmul` run the winner.

    The arguments are those of :func:`matmill.matmul`, whose product they describe. Nothing is written to ``out``: it
    says how the result is laid out. NumPy arrays are copied to GPU 0. The model's first choice and the next best with
    other tiles, ``candidates`` in all, run interleaved on these operands, with a cold L2 cache and, where operands and
    result fit in it, with a warm one too. Those that need more than ``workspace_limit`` bytes of workspace are left
    out, but for the model's first. The call waits for the GPU.

    A configuration that takes 3% less time than the model's first is preferred for exactly this product (extents,
    strides, types, alignment) on this GPU, in this process and, through a file in the cache folder, in later ones. The
    last time that a product was tuned counts.

    Raises what :func:`matmill.matmul` raises, :class:`~matmill.errors.NoGPUError` without a GPU, and
    :class:`~matmill.errors.ArgumentError` for a product of several stages (batches that are split) or without elements.

    >>> import matmill, numpy as np
    >>> matmill.tune(np.eye(2), np.eye(2), candidates=0)
    Traceback (most recent call last):
    matmill.errors.ArgumentError: candidates: got 0; wanted 1 or more. Omit it for 4.
    """
    if misplaced:
        raise ArgumentError(
            argument="c", got="an array by position", wanted="two arrays by position", fix="Pass c=array, beta=1.0."
        )
    if candidates < 1:
        raise ArgumentError(argument="candidates", got=str(candidates), wanted="1 or more", fix="Omit it for 4.")
    if beta is None and c is not None:
        raise ArgumentError(argument="c", got="an array without beta", wanted="c and beta", fix="Pass beta=1.0 too.")
    options = bias, activation, out_dtype, precision, batch_invariant
    request = product_request(MATMUL, a, b, c, alpha, beta or 0.0, out, None, options)
    shape = validate(request)
    if request.c is not None and request.beta == 0:
        request = request._replace(c=None)
    if request.out is not None:
        check_apart(request)
    if request.home.device[0] == "cuda":
        return tune_request(GPU.get(request.home.device[1]), request, shape, candidates, workspace_limit)
    gpu = GPU.get(0)
    return tune_request(gpu, uploaded(gpu, request), shape, candidates, workspace_limit)


def tune_request(gpu: GPU, request: Request, shape: Shape, count: int = 4, workspace_limit: int = 64 * 2**20) -> Tuned:
    """Tune a checked request whose operands are on ``gpu``; ``shape`` is the result's.

    Raises :class:`~matmill.errors.ArgumentError` as :func:`tune` does.
    """
    with ExitStack() as stack:
        out, dtype = request.out, request.result_type
        low, high = bounds(out) if out is not None and out.nbytes else (0, math.prod(shape) - 1)
        memory = stack.enter_context(gpu.empty((high - low + 1) * dtype.itemsize + 16))
        address = memory.address - low * dtype.itemsize
        # Behind 16 bytes as far as out is: alignment is part of the problem.
        address += ((0 if out is None else out.address) - address) % 16
        strides = packed_strides(shape) if out is None else out.strides
        d = request.a._replace(shape=shape, strides=strides, dtype=dtype, address=address, owner=None)
        stages = fit_batches(MATMUL.lower(request, d), gpu.arch)
        if len(stages) != 1 or not stages[0].offsets.only_origin:
            raise ArgumentError(
                argument="a, b",
                got=f"a product of {len(stages)} stages, or of one at several offsets",
                wanted="a product of one stage, which one configuration runs",
                fix="Tune a product of a smaller batch, of real elements, at least one of them.",
            )
        return _tuned(
            gpu, request, stages[0], address, legal_choices(stages[0].problem, gpu.arch, count, workspace_limit)
        )


def legal_choices(problem: Gemm, arch: Arch, count: int, workspace_limit: int) -> list[Choice[Gemm]]:
    """Return the model's first choice and the next best of other kernels or tiles, at most ``count`` in all."""
    first = choose_by_models(problem, arch)
    legal, _ = all_candidates(entries(problem), problem, arch)
    own = next(one for one in legal if one.kernel == first.kernel)
    seen, choices = {(own.kernel.entry, tile(own))}, [first]
    for one in legal:
        key = one.kernel.entry, tile(one)
        if len(choices) < count and key not in seen and one.workspace <= workspace_limit:
            seen.add(key)
            choices.append(Choice(one.kernel, one.seconds))
    return choices


def _tuned(gpu: GPU, request: Request, stage: SubProblem[Gemm], address: int, choices: Sequence[Choice[Gemm]]) -> Tuned:
    competitors, failures = {}, {}
    with ExitStack() as stack:
        gpu.synchronize()  # operands may still be written on other streams
        for index, choice in enumerate(choices):
            try:
                plan = Plan(gpu, (ready(stage, choice, gpu.arch),))
                workspace = stack.enter_context(gpu.empty(plan.workspace)).address if plan.workspace else 0
                competitors[index] = _competitor(plan, request, address, workspace)
            except MatmillError as error:
                failures[index] = str(error)
        seconds = dict(zip(competitors, measure(gpu, stage.problem, list(competitors.values())), strict=True))
        gpu.synchronize()
    if not seconds:
        raise ArgumentError(
            argument="a, b",
            got="; ".join(failures.values()),
            wanted="a configuration that runs",
            fix="Run `matmill doctor`.",
        )
    rows = tuple(
        Row(
            choice.kernel.entry,
            label(choice.kernel.config) if choice.kernel.work_tiles else str(choice.kernel.config),
            choice.predicted_seconds,
            seconds.get(index),
            failures.get(index, ""),
        )
        for index, choice in enumerate(choices)
    )
    best = min(seconds, key=seconds.__getitem__)
    first = seconds.get(0, math.inf)
    kept = seconds[best] <= _BETTER * first
    kernel = choices[best].kernel
    preference = Preference(kernel.entry, str(kernel.config), seconds[best], first)
    keep(gpu, stage.problem, preference if kept else None)
    forget_plans()
    return Tuned(stage.problem, rows, best if kept else 0, kept)


def _competitor(plan: Plan, request: Request, address: int, workspace: int) -> Competitor:
    """Return the plan as a competitor, whose result goes to ``address``."""
    enqueue = plan.bound(request.alpha, request.beta)

    def run(stream: Any) -> None:
        room, counter = plan.stream_buffers(stream.address)
        enqueue(operand_addresses(request, address, room or workspace, counter), stream.address)

    return Competitor(plan.ready[0].choice.kernel.entry, run)


def measure(gpu: GPU, problem: Gemm, competitors: Sequence[Competitor]) -> list[float]:
    """Return the median seconds of each, interleaved: cold, or the mean of cold and warm where all fits in L2."""
    fits = problem.least_bytes <= gpu.arch.l2_bytes
    sums = [0.0] * len(competitors)
    for cold in (True, False) if fits else (True,):
        with Clock(gpu, flush_bytes(gpu.arch, cold=cold)) as clock:
            each = _SECONDS / (1 + fits) / max(1, len(competitors))
            timings = clock.compare(competitors, seconds_each=each, most_rounds=_ROUNDS, settle=_SETTLE)
        sums = [total + timing.median for total, timing in zip(sums, timings, strict=True)]
    return [total / (1 + fits) for total in sums]
