"""Whole PyTorch programs, torch alone beside the same with ``matmill.torch.enable()``.

    PYTHONPATH=src python benchmarks/programs.py --out benchmarks/results/programs_h200.json
    PYTHONPATH=src python benchmarks/programs.py --only gpt2 bert --compile
    PYTHONPATH=src python benchmarks/programs.py --float32 float32_tensor --out benchmarks/results/programs_h200.json
    PYTHONPATH=src python benchmarks/programs.py --small --device cpu   # the script itself, without a GPU

Two copies of a program start from the same weights. Their gradients are compared, and their losses over 20 steps that
move every weight. Then runs of whole steps (forward, backward, optimizer) and of forward and backward alone are
interleaved in random order: four steps each, without waiting for the GPU in between, as a program trains; medians
count. torch alone is timed twice: the difference is the noise of the host. A CUDA graph of forward and backward says
what the GPU alone takes, without the host. Exits with 1 where gradients or losses differ by more than the type's
rounding, or where losses stay what they were, so that they say nothing.

With ``--float32`` the programs of float32 run with ``enable(float32=...)``, and in float64 too: how far losses and
gradients of both are from those is recorded. An existing record keeps its other rows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch

import matmill.torch
from lab.program_checks import GRADIENTS, LOSSES, gradients_differ, learn, losses_differ, losses_move
from lab.programs import PROGRAMS, build
from lab.records import by_line
from matmill.bench.environment import describe
from matmill.problem import SPLIT_METHODS
from matmill.runtime.gpu import GPU

_LOSSES, _IN_A_ROW, _ROUNDS = 20, 4, 15
#: Fields of a program's record that must be true.
_CHECKS = ("losses_agree", "losses_tell", "gradients_agree")
#: Steps until whole steps have been compared: three arms of five steps in three rounds, and what comes before.
_WARM = 60
#: A small step: losses are to stay comparable.
_RATE = 1e-5
#: The factor of float16 losses before gradients, as a GradScaler has one: without it most are rounded to zero.
_SCALE = 1024.0


#: Calls by who answers, each with what it runs within.
_Ways: TypeAlias = dict[str, tuple[Callable[[], Any], AbstractContextManager[Any]]]


class _Copy:
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


def measure(name: str, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one program."""
    begin = time.perf_counter()
    alone, enabled = (_Copy(name, device, small=options.small) for _ in range(2))
    alone.gradients()
    exact = None if options.float32 is None else _Copy(name, device, small=options.small, dtype="float64")
    if exact is not None:
        exact.gradients()
    with matmill.torch.enable(float32=options.float32) as enabled_once:
        for _ in range(2):  # products are timed at the first meeting, and answered from the second on
            enabled.gradients()
        # No optimizer has stepped, so the comparison of whole steps has not begun: all products that matmill wins are
        # its own here and in the losses.
        gradients = gradients_differ(alone.parameters, enabled.parameters)
        distances = {} if exact is None else _distances(exact, alone, enabled)
        answered = sum(row.calls for row in matmill.torch.report().rows if row.answered_by == "matmill")
        ours = enabled.losses()
        met = time.perf_counter() - begin
    losses = alone.losses()
    if exact is not None:
        expected = exact.losses()
        distances["losses"] = {"torch": losses_differ(expected, losses), "matmill": losses_differ(expected, ours)}
        del exact
    torch_memory = _peak(device, alone.step)
    with enabled_once:
        for _ in range(0 if options.small else _WARM):
            enabled.step()
        memory = _peak(device, enabled.step)
        before = matmill.torch.report().saved_seconds
        enabled.gradients()
        report = matmill.torch.report()
        saved = report.saved_seconds - before
    off = nullcontext()
    ways: dict[str, _Ways] = {
        "step": {"torch": (alone.step, off), "matmill": (enabled.step, enabled_once), "torch again": (alone.step, off)},
        "gradients": {"torch": (alone.gradients, off), "matmill": (enabled.gradients, enabled_once)},
    }
    if options.compile:
        compiled = _Copy(name, device, small=options.small)
        compiled.loss = torch.compile(compiled.loss)
        ways["gradients"]["compile"] = (compiled.gradients, off)
    if device == "cuda" and alone.parameters:
        ways["graph"] = {"torch": (_graph(alone, off), off), "matmill": (_graph(enabled, enabled_once), off)}
    difference, moved = losses_differ(losses, ours), losses_move(losses)
    dtype = PROGRAMS[name].dtype
    times = {way: _interleaved(calls, device, options.rounds) for way, calls in ways.items()}
    whole = times["step"]
    gained = whole["torch"] - whole["matmill"]
    return {
        "name": name,
        "title": PROGRAMS[name].title,
        "dtype": dtype,
        "seconds": times,
        "ratio": whole["torch"] / whole["matmill"],
        "noise": whole["torch again"] / whole["torch"] - 1,
        "products_saved": saved,
        "share_of_saved": gained / saved if saved > 0 else None,
        "loss_difference": difference,
        "losses_agree": difference <= LOSSES[dtype],
        "losses_move": moved,
        "losses_tell": moved > 2 * LOSSES[dtype] or not alone.parameters,
        "gradient_difference": gradients,
        "gradients_agree": gradients <= GRADIENTS[dtype],
        "answered_while_checked": answered,
        **({"from_float64": distances} if distances else {}),
        "memory": {"torch": torch_memory, "matmill": memory},
        "seconds_to_meet": met,
        "compared": report.step_seconds,
        "products": [
            {
                "product": row.key,
                "calls": row.calls,
                "by": row.answered_by,
                "method": row.method,
                "torch": row.torch_seconds,
                "matmill": row.matmill_seconds,
            }
            for row in report.rows
            if row.calls
        ],
    }


def _distances(exact: _Copy, alone: _Copy, enabled: _Copy) -> dict[str, dict[str, float]]:
    """Return how far the gradients of torch and of matmill are from those in float64."""
    ways = {"torch": alone, "matmill": enabled}
    return {"gradients": {way: gradients_differ(exact.parameters, copy.parameters) for way, copy in ways.items()}}


def _recorded(path: Path, head: Mapping[str, Any], rows: list[dict[str, Any]], float32: str | None) -> dict[str, Any]:
    """Return the record at ``path``, or a new one, with these rows: of that option, or those without one."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {**head, "programs": []}
    if float32 is not None:
        return {**record, float32: {"environment": head["environment"], "programs": rows}}
    return {**head, **{name: record[name] for name in SPLIT_METHODS if name in record}, "programs": rows}


def _peak(device: str, call: Callable[[], Any]) -> int:
    """Return the most bytes that a call allocates beside what was there."""
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    there = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - there)


def _graph(copy: _Copy, context: AbstractContextManager[Any]) -> Callable[[], Any]:
    """Return the replay of a CUDA graph of forward and backward."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with context, torch.cuda.stream(side):
        for _ in range(3):
            copy.gradients()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            copy.gradients()
    return graph.replay  # type: ignore[no-any-return] # torch may be absent, and is Any then


def _interleaved(calls: _Ways, device: str, rounds: int) -> dict[str, float]:
    """Return the median seconds of each call in runs of several."""
    samples: dict[str, list[float]] = {way: [] for way in calls}
    order = list(calls)
    for done in range(rounds + 1):
        random.shuffle(order)
        for way in order:
            call, context = calls[way]
            with context:
                seconds = _run(call, device)
            samples[way] += [seconds] if done else []  # the first round warms up
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


def _line(row: Mapping[str, Any]) -> str:
    times = ", ".join(
        f"{way} " + " / ".join(f"{1e3 * seconds:.3f}" for seconds in calls.values())
        for way, calls in row["seconds"].items()
    )
    share = "" if row["share_of_saved"] is None else f", {row['share_of_saved']:.0%} of what its products save"
    wrong = "" if row["losses_agree"] else f"  LOSSES DIFFER by {row['loss_difference']:.2g}"
    wrong += "" if row["gradients_agree"] else f"  GRADIENTS DIFFER by {row['gradient_difference']:.2g}"
    wrong += f"  from float64: {row['from_float64']}" if "from_float64" in row else ""
    wrong += "" if row["losses_tell"] else f"  LOSSES MOVE BY {row['losses_move']:.2g} ALONE"
    return f"{row['name']:13} {row['ratio']:5.2f}x, noise {row['noise']:+.0%}{share}; ms: {times}{wrong}"


def main() -> None:
    """Measure programs and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--float32", choices=list(SPLIT_METHODS), help="float32 in pieces: programs of float32 alone")
    parser.add_argument("--list", action="store_true", help="the programs")
    parser.add_argument("--out", type=Path, help="the record, as JSON; written after every program")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="few of everything, for the CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside them")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:13} {named.title}, {named.dtype}" for name, named in PROGRAMS.items()))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: --device cpu --small tries the script", file=sys.stderr)
        sys.exit(3)
    rows: list[dict[str, Any]] = []
    arch = GPU.get(0).arch.name if options.device == "cuda" else "cpu"
    head = {"record": "programs", "arch": arch, "environment": describe(gpu=options.device == "cuda")}
    kinds = set(LOSSES) if options.float32 is None else {"float32"}
    for name in options.only or [name for name in PROGRAMS if PROGRAMS[name].dtype in kinds]:
        rows.append(measure(name, options.device, options))
        print(_line(rows[-1]), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        if options.out is not None:
            record = _recorded(options.out, head, rows, options.float32)
            options.out.write_text(by_line(record, "programs"), encoding="utf-8")
    sys.exit(0 if all(row[check] for row in rows for check in _CHECKS) else 1)


if __name__ == "__main__":
    main()
