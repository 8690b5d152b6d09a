"""Times the configurations of an operation's kernels on many problems: what its cost model is fitted on.

The operations share the command line, the loop over tasks, the contest of a task's configurations, and the record. What
differs between them is one :class:`Search`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lab.clean_clock import clean_clock
from lab.compiler import KernelCompiler, add_workers
from lab.contest import Rules, contest
from lab.enqueue import enqueuer
from lab.operations import chosen
from lab.records import Kind, append
from lab.tensors import needs_torch
from matmill import arch as arches
from matmill.arch import DEFAULT, Arch
from matmill.bench.environment import describe
from matmill.bench.timing.clock import Clock, Competitor, StreamHandle
from matmill.kernel import GemmOperands, Kernel
from matmill.runtime.gpu import GPU

#: The longest that the last task may take after the time is over.
_RESERVE = 15.0
#: Tasks whose kernels are ordered ahead of time.
_AHEAD = 40

#: One problem to search, and how.
T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """A kernel with its configuration, and the seconds that its cost model predicts."""

    kernel: Kernel[Any]
    predicted: float


@dataclass(frozen=True)
class Timed:
    """A candidate, the median of its times, and of how many rounds."""

    candidate: Candidate
    seconds: float
    rounds: int


@dataclass(frozen=True)
class Tools:
    """What a search works with; ``seed`` is that of the matrices and of the order of runs."""

    gpu: GPU
    clock: Clock
    compiler: KernelCompiler
    rules: Rules
    seed: int


@dataclass(frozen=True)
class Trial:
    """The matrices of one task on the GPU, and what is timed beside the candidates, in all rounds: ``others``.

    ``operands`` gives what all candidates are given, with so many bytes of workspace. ``try_out`` runs a candidate for
    the first time where it must be, and checks its result where the search does. ``line`` gives the fields of the
    record's line behind the task's own, from the candidates' times and the medians of the others.
    """

    others: Sequence[Competitor]
    operands: Callable[[int], GemmOperands]
    try_out: Callable[[Kernel[Any], Callable[[StreamHandle], None]], None]
    line: Callable[[Sequence[Timed], Mapping[str, float]], dict[str, Any]]


@dataclass(frozen=True)
class Search(Generic[T]):
    """What differs between the operations that are searched.

    ``tasks`` gives what there is to do, what matters most first, from the command line and the GPU; ``described`` the
    first fields of a task's line in the record, which name it there; ``candidates`` the configurations to time, the
    model's choice first, given a seed where they are drawn. ``trials`` is a context in which tasks get their matrices.
    ``wrong`` counts the wrong results of a line, ``said`` tells a line in words. ``noun`` is what tasks are called.
    """

    kind: Kind
    noun: str
    header: Mapping[str, Any]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    tasks: Callable[[argparse.Namespace, Arch], list[T]]
    problem: Callable[[T], Any]
    described: Callable[[T], dict[str, Any]]
    candidates: Callable[[T, Arch, int], list[Candidate]]
    trials: Callable[[Tools], AbstractContextManager[Callable[[T], Trial]]]
    wrong: Callable[[Mapping[str, Any]], int]
    said: Callable[[Mapping[str, Any]], str]

    def left(self, tasks: Sequence[T], path: Path, seed: int, environment: Mapping[str, Any]) -> list[T]:
        """Return the tasks that the record at ``path`` has no line of yet; begins it where there is none."""
        lines = self.kind.open(path, seed, {"environment": environment, **self.header})
        done = {self.kind.key(line) for line in lines}
        return [task for task in tasks if self.kind.key(self.described(task)) not in done]

    def measure(
        self, tools: Tools, make: Callable[[T], Trial], task: T, candidates: Sequence[Candidate]
    ) -> dict[str, Any]:
        """Time ``candidates`` and what the trial has beside them, interleaved; give the line of the record."""
        problem, trial = self.problem(task), make(task)
        operands = trial.operands(max(one.kernel.workspace(problem) for one in candidates))
        runs = []
        for one in candidates:
            runs.append(enqueuer(tools.gpu, tools.compiler.steps(one.kernel, problem, operands)))
            trial.try_out(one.kernel, runs[-1])
        tools.gpu.synchronize()
        competitors = [*(Competitor(str(index), run) for index, run in enumerate(runs)), *trial.others]
        named = {other.name for other in trial.others}
        samples = contest(tools.clock.once, competitors, tools.rules, tools.seed, always=named)
        medians = {name: statistics.median(seconds) for name, seconds in samples.items()}
        timed = [Timed(one, medians[str(i)], len(samples[str(i)])) for i, one in enumerate(candidates)]
        return {**self.described(task), **trial.line(timed, {name: medians[name] for name in named})}


def main(searches: Mapping[str, Search[Any]], description: str | None) -> None:
    """Search what the command line names, or compiles alone; end with 1 where a result is wrong."""
    search, args = chosen(searches, description, _add_arguments)
    if args.out is None and not args.compile_only:
        args.fail("--out is needed, but for --compile-only")
    if args.compile_only:
        _compile(search, args)
    else:
        sys.exit(1 if _search(search, args) else 0)


def _add_arguments(parser: argparse.ArgumentParser, search: Search[Any]) -> None:
    parser.add_argument("--out", type=Path, help="the record, to which lines are appended")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=500.0, help="when to stop (default: 500)")
    parser.add_argument("--rounds", type=int, default=5, help="of whatever is not far from the best (default: 5)")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache of kernels; needs no GPU")
    parser.add_argument("--arch", default=DEFAULT, help=f"what --compile-only compiles for (default: {DEFAULT})")
    add_workers(parser)
    search.add_arguments(parser)


def _compile(search: Search[T], args: argparse.Namespace) -> None:
    """Fill the cache of kernels."""
    arch, begin = arches.get(args.arch), time.monotonic()
    with KernelCompiler(arch.target, args.workers) as compiler:
        for task in search.tasks(args, arch):
            kernels = [one.kernel for one in search.candidates(task, arch, args.seed)]
            compiler.order(kernels, search.problem(task).dtype)
        compiler.wait()
        print(f"{compiler.ordered} kernels for {arch.target} in {time.monotonic() - begin:.0f} s")


def _search(search: Search[T], args: argparse.Namespace) -> int:
    """Go through the tasks until the time is over; kernels are ordered some tasks ahead. Counts wrong results."""
    end = time.monotonic() + args.seconds - _RESERVE
    needs_torch()
    gpu = GPU.get(0)
    environment = {**describe(gpu=True), "rounds": args.rounds}
    todo = search.left(search.tasks(args, gpu.arch), args.out, args.seed, environment)
    left, ready = iter(todo), deque[tuple[T, list[Candidate]]]()
    done = wrong = 0
    with KernelCompiler(gpu.arch.target, args.workers) as compiler, clean_clock(gpu) as clock:
        tools = Tools(gpu, clock, compiler, Rules(rounds=args.rounds, deadline=end), args.seed)
        with search.trials(tools) as make:
            begin = time.monotonic()
            while time.monotonic() < end:
                while len(ready) < _AHEAD and (task := next(left, None)) is not None:
                    candidates = search.candidates(task, gpu.arch, args.seed)
                    compiler.order([one.kernel for one in candidates], search.problem(task).dtype)
                    ready.append((task, candidates))
                if not ready:
                    break
                line = search.measure(tools, make, *ready.popleft())
                append(args.out, line)
                done += 1
                wrong += search.wrong(line)
                print(search.said(line), flush=True)
        print(
            f"{done} of {len(todo)} {search.noun} in {time.monotonic() - begin:.0f} s, of which {compiler.waited:.0f} "
            f"s waiting for {compiler.ordered} kernels; {wrong} wrong results"
        )
    return wrong
