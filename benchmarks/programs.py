"""Whole PyTorch programs, torch alone beside the same with ``matmill.torch.enable()``.

    PYTHONPATH=src python benchmarks/programs.py --out benchmarks/results/programs_h200.json
    PYTHONPATH=src python benchmarks/programs.py --compile default max-autotune --out compiled_h200.json
    PYTHONPATH=src python benchmarks/programs.py --float32 float32_tensor --out benchmarks/results/programs_h200.json
    PYTHONPATH=src python benchmarks/programs.py --small --device cpu   # the script itself, without a GPU

Two copies of a program start from the same weights. Their gradients are compared, and their losses over 20 steps that
move every weight. Then blocks of whole steps (forward, backward, optimizer) and of forward and backward alone are
interleaved in random order: steps until the host is at its pace, then runs of four steps, without waiting for the GPU
in between, as a program trains; medians count. torch alone is timed twice: the difference is the noise of the host. A
CUDA graph of forward and backward says what the GPU alone takes, without the host. Exits with 1 where gradients or
losses differ by more than the type's rounding, or where losses stay what they were, so that they say nothing.

With ``--compile`` forward and backward are compiled by torch, alone and with matmill enabled, in each mode. Losses that
differ by more than rounding must be as near to those in float64 as torch's.

With ``--float32`` the programs of float32 run with ``enable(float32=...)``, and in float64 too: how far losses and
gradients of both are from those is recorded. An existing record keeps its other rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import matmill.torch
from lab.program_checks import GRADIENTS, LOSSES, gradients_differ, losses_differ, losses_move
from lab.program_runs import Copy, Ways, graph, interleaved, peak
from lab.programs import PROGRAMS
from lab.records import by_line
from matmill.bench.environment import describe
from matmill.problem import SPLIT_METHODS
from matmill.runtime.gpu import GPU

_ROUNDS = 4
#: Fields of a program's record that must be true.
_CHECKS = ("losses_agree", "losses_tell", "gradients_agree")
#: Modes of torch.compile, as its keywords.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
#: Steps until whole steps have been compared: three arms of five steps in three rounds, and what comes before.
_WARM = 60


def measure(name: str, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one program."""
    begin = time.perf_counter()
    alone, enabled = (Copy(name, device, small=options.small) for _ in range(2))
    alone.gradients()
    exact = None if options.float32 is None else Copy(name, device, small=options.small, dtype="float64")
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
    torch_memory = peak(device, alone.step)
    with enabled_once:
        for _ in range(0 if options.small else _WARM):
            enabled.step()
        memory = peak(device, enabled.step)
        before = matmill.torch.report().saved_seconds
        enabled.gradients()
        report = matmill.torch.report()
        saved = report.saved_seconds - before
    off = nullcontext()
    ways: dict[str, Ways] = {
        "step": {"torch": (alone.step, off), "matmill": (enabled.step, enabled_once), "torch again": (alone.step, off)},
        "gradients": {"torch": (alone.gradients, off), "matmill": (enabled.gradients, enabled_once)},
    }
    if device == "cuda" and alone.parameters:
        ways["graph"] = {"torch": (graph(alone, off), off), "matmill": (graph(enabled, enabled_once), off)}
    times = {way: interleaved(calls, device, options.rounds) for way, calls in ways.items()}
    whole = times["step"]
    gained = whole["torch"] - whole["matmill"]
    return {
        **_results(name, losses, ours, gradients, trained=bool(alone.parameters)),
        "seconds": times,
        **_ratios(whole),
        "products_saved": saved,
        "share_of_saved": gained / saved if saved > 0 else None,
        "answered_while_checked": answered,
        **({"from_float64": distances} if distances else {}),
        "memory": {"torch": torch_memory, "matmill": memory},
        "seconds_to_meet": met,
        "compared": report.step_seconds,
        "products": [row for row in _products() if row["calls"]],
    }


def compiled(name: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one program that torch compiles in a mode: forward and backward."""
    device = options.device
    torch._dynamo.reset()  # noqa: SLF001 — torch has no public name for it that keeps caches on disk
    alone, enabled = (Copy(name, device, small=options.small) for _ in range(2))
    for copy in (alone, enabled):
        copy.loss = torch.compile(copy.loss, **MODES[mode])
    begin = time.perf_counter()
    alone.gradients()
    for parameter in alone.parameters:
        parameter.grad = parameter.grad.clone()  # the memory of a CUDA graph belongs to its next run
    between = time.perf_counter()
    with matmill.torch.enable(float32=options.float32) as context:
        enabled.gradients()
        met = time.perf_counter() - between
        gradients = gradients_differ(alone.parameters, enabled.parameters)
        ours = enabled.losses()
    losses = alone.losses()
    off = nullcontext()
    ways: Ways = {
        "torch": (alone.gradients, off),
        "matmill": (enabled.gradients, context),
        "torch again": (alone.gradients, off),
    }
    times = interleaved(ways, device, options.rounds)
    results = _results(name, losses, ours, gradients, trained=bool(alone.parameters))
    if not results["losses_agree"]:  # training may be so sensitive that torch compiled differs as much from torch
        expected = Copy(name, device, small=options.small, dtype="float64").losses()
        distances = {"torch": losses_differ(expected, losses), "matmill": losses_differ(expected, ours)}
        agree = distances["matmill"] <= distances["torch"]
        results |= {"losses_from_float64": distances, "losses_agree": agree}
    return {
        **results,
        "mode": mode,
        "seconds": times,
        **_ratios(times),
        "seconds_to_compile": {"torch": between - begin, "matmill": met},
        "products": _products(),
    }


def _results(
    name: str, losses: Sequence[float], ours: Sequence[float], gradients: float, *, trained: bool
) -> dict[str, Any]:
    """Return what a record says of the results: torch's losses, matmill's, and the difference of gradients."""
    program, difference, moved = PROGRAMS[name], losses_differ(losses, ours), losses_move(losses)
    most = LOSSES[program.dtype]
    return {
        "name": name,
        "title": program.title,
        "dtype": program.dtype,
        "loss_difference": difference,
        "losses_agree": difference <= most,
        "losses_move": moved,
        "losses_tell": moved > 2 * most or not trained,
        "gradient_difference": gradients,
        "gradients_agree": gradients <= GRADIENTS[program.dtype],
    }


def _ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as fast matmill is, and how much torch's time differs from one arm to the other."""
    return {
        "ratio": seconds["torch"] / seconds["matmill"],
        "noise": seconds["torch again"] / seconds["torch"] - 1,
    }


def _products() -> list[dict[str, Any]]:
    """Return the products that matmill's report knows."""
    return [
        {
            "product": row.key,
            "calls": row.calls,
            "by": row.answered_by,
            "method": row.method,
            "torch": row.torch_seconds,
            "matmill": row.matmill_seconds,
        }
        for row in matmill.torch.report().rows
    ]


def _distances(exact: Copy, alone: Copy, enabled: Copy) -> dict[str, dict[str, float]]:
    """Return how far the gradients of torch and of matmill are from those in float64."""
    ways = {"torch": alone, "matmill": enabled}
    return {"gradients": {way: gradients_differ(exact.parameters, copy.parameters) for way, copy in ways.items()}}


def _recorded(path: Path, head: Mapping[str, Any], rows: list[dict[str, Any]], float32: str | None) -> dict[str, Any]:
    """Return the record at ``path``, or a new one, with these rows: of that option, or those without one."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {**head, "programs": []}
    if float32 is not None:
        return {**record, float32: {"environment": head["environment"], "programs": rows}}
    return {**head, **{name: record[name] for name in SPLIT_METHODS if name in record}, "programs": rows}


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


def _compiled_line(row: Mapping[str, Any]) -> str:
    ms = {way: f"{1e3 * seconds:.3f}" for way, seconds in row["seconds"].items()}
    wrong = "".join(f"  {check} is false" for check in _CHECKS if not row[check])
    ours = sum(product["by"] == "matmill" for product in row["products"])
    counted = f"{ours} of {len(row['products'])} products"
    return (
        f"{row['name']:13} {row['mode']:15} {row['ratio']:5.2f}x, noise {row['noise']:+.0%}, {counted}; ms: {ms}{wrong}"
    )


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
    parser.add_argument("--compile", nargs="+", choices=list(MODES), help="compiled programs, in these modes of torch")
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
        for mode in options.compile or [None]:
            rows.append(measure(name, options.device, options) if mode is None else compiled(name, mode, options))
            print((_line if mode is None else _compiled_line)(rows[-1]), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        if options.out is not None:
            record = _recorded(options.out, head, rows, options.float32)
            options.out.write_text(by_line(record, "programs"), encoding="utf-8")
    sys.exit(0 if all(row[check] for row in rows for check in _CHECKS) else 1)


if __name__ == "__main__":
    main()
