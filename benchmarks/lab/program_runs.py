"""Runs of whole programs: their gradients, losses, steps and graphs, and what these take, interleaved."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch

from lab.program_checks import learn
from lab.programs import PROGRAMS, build

_LOSSES = 20
#: Calls in a row that one time is of, such times in a block, and the calls before them.
_IN_A_ROW, _RUNS, _SETTLING = 4, 4, 60
#: A small step: losses are to stay comparable.
_RATE = 1e-5
#: The factor of float16 losses before gradients, as a GradScaler has one: without it most are rounded to zero.
_SCALE = 1024.0


#: Calls by who answers, each with what it runs within.
Ways: TypeAlias = dict[str, tuple[Callable[[], Any], AbstractContextManager[Any]]]


class Copy:
    """A program that is ready to run, with its optimizer."""

    def __init__(self, name: str, device: str, *, small: bool, dtype: str | None = None) -> None:
        program = build(name, device, small=small, dtype=dtype)
        self.loss = program.loss
        self.parameters = program.parameters
        self._scale = _SCALE if PROGRAMS[name].dtype == "float16" else 1.0
        rate = _RATE / self._scale
        self._optimizer = torch.optim.SGD(program.parameters, rate, momentum=0.9) if program.parameters else None

    def gradients(self) -> Any:
        """Run forward and backward; a program without parameters runs forward alone."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.loss()
        if self.parameters:
            (loss if self._scale == 1 else loss.float() * self._scale).backward()
        return loss.detach()

    def losses(self) -> list[float]:
        """Return the losses of steps that move every weight, see :func:`~lab.program_checks.learn`."""
        result = []
        for _ in range(_LOSSES):
            result.append(float(self.gradients()))
            learn(self.parameters)
        return result

    def step(self) -> Any:
        """Run a whole step."""
        loss = self.gradients()
        if self._optimizer is not None:
            self._optimizer.step()
        return loss


def peak(device: str, call: Callable[[], Any]) -> int:
    """Return the most bytes that a call allocates beside what was there."""
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    there = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - there)


def graph(copy: Copy, context: AbstractContextManager[Any]) -> Callable[[], Any]:
    """Return the replay of a CUDA graph of forward and backward."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with context, torch.cuda.stream(side):
        for _ in range(3):
            copy.gradients()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=side):
            copy.gradients()
    return captured.replay  # type: ignore[no-any-return] # torch may be absent, and is Any then


def interleaved(calls: Ways, device: str, rounds: int) -> dict[str, float]:
    """Return the median seconds of each call in runs of several, in blocks of runs in random order.

    Each block begins with calls that do not count. Switching matmill on or off changes functions of torch.Tensor, and
    CPython looks up its attributes more slowly for some fifty executions of each instruction after that.
    """
    samples: dict[str, list[float]] = {way: [] for way in calls}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for way in order:
            call, context = calls[way]
            with context:
                for _ in range(_SETTLING if device == "cuda" else 1):
                    call()
                samples[way] += [_run(call, device) for _ in range(_RUNS)]
    return {way: statistics.median(times) for way, times in samples.items()}


def _run(call: Callable[[], Any], device: str) -> float:
    """Return the seconds of one of several calls in a row."""
    if device != "cuda":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(_IN_A_ROW):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / _IN_A_ROW
