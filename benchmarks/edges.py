"""Time products at the edges of what one kernel or launch takes, beside torch, on one GPU.

    python benchmarks/edges.py --out benchmarks/results/edges_h200.json

Tall products of few columns around 17,301,504 rows and beyond, batches beyond 65,535 products, sliding windows, and
float32 operands summed in float64 beside the same product in float32 and beside torch's of converted operands. Calls
are interleaved in random order with a cold L2. Results are compared with torch's in float64. Exits with 1 where one is
wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matmill
from matmill.bench.environment import describe

_FLUSH, _ROUNDS, _ROWS = 512 << 20, 9, 64
#: Rows about the limit that short_k's work tiles had until 2026-11-26.
_TALL = (17_301_504, 17_301_505, 30_000_000, 77_414_400)
_FEW = ((3, 3), (4, 4), (16, 16), (1, 64))
#: Products of a batch, and their m, n and k.
_BATCHES = ((65_535, 4, 4, 4), (10**6, 4, 4, 4), (10**6, 8, 8, 8), (200_000, 17, 17, 17), (100_000, 64, 64, 64))
_SUMS = ((1, 1), (2, 2), (3, 3), (4, 4), (6, 6), (8, 8), (12, 12), (16, 16), (32, 32), (64, 64))


@dataclass(frozen=True)
class Task:
    """Operands, the calls to time, by name, and which of them to compare with float64 at what relative error."""

    name: str
    a: Any
    b: Any
    calls: dict[str, Callable[[], Any]]
    limit: float


def tasks(torch: Any) -> Iterator[Task]:
    """Make all products; those of one are freed before the next is made."""
    kinds = {"float32": (torch.float32, 1e-4), "bfloat16": (torch.bfloat16, 2e-2)}
    for name, (dtype, limit) in kinds.items():
        for n, k in _FEW:
            for m in _TALL:
                yield _beside(
                    torch, f"{m} x {n} x {k} {name}", _random(torch, dtype, m, k), _random(torch, dtype, k, n), limit
                )
        for batch, m, n, k in _BATCHES:
            a, b = _random(torch, dtype, batch, m, k), _random(torch, dtype, batch, k, n)
            yield _beside(torch, f"{batch} of {m} x {n} x {k} {name}", a, b, limit)
        windows = _random(torch, dtype, 10**6 + 63).unfold(0, 64, 1)
        yield _beside(torch, f"windows 1000000 x 64, by 64 x 8 {name}", windows, _random(torch, dtype, 64, 8), limit)
    for m, n in _SUMS:
        k = min(2 * 10**7, 2**31 // (4 * (m + n)))
        a, b = _random(torch, torch.float32, m, k), _random(torch, torch.float32, k, n)
        yield _summed(torch, f"float64 sums {m} x {n} x {k}", a, b)
        x = _random(torch, torch.float32, k, n)
        yield _summed(torch, f"float64 sums, gram {n} x {n} x {k}", x.mT, x)


def _random(torch: Any, dtype: Any, *shape: int) -> Any:
    return torch.rand(shape, device="cuda", dtype=dtype)


def _beside(torch: Any, name: str, a: Any, b: Any, limit: float) -> Task:
    calls = {"ours": lambda: matmill.matmul(a, b), "torch": lambda: torch.matmul(a, b)}
    return Task(name, a, b, calls, limit)


def _summed(torch: Any, name: str, a: Any, b: Any) -> Task:
    calls = {
        "ours": lambda: matmill.matmul(a, b, out_dtype="float64"),
        "ours in float32": lambda: matmill.matmul(a, b),
        "torch": lambda: torch.matmul(a.double(), b.double()),
    }
    return Task(name, a, b, calls, 1e-12)


def measure(task: Task, flush: Any, torch: Any) -> dict[str, Any]:
    """Time a product's calls, in microseconds, and compare rows (or products) of ours drawn at random with float64."""
    got = task.calls["ours"]()
    picked = torch.randint(0, len(got), (min(_ROWS, len(got)),), device="cuda")
    b = task.b[picked] if task.b.dim() > 2 else task.b
    wanted = task.a[picked].double() @ b.double()
    error = float(((got[picked].double() - wanted).abs() / wanted).max())
    for call in task.calls.values():
        call()
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in task.calls}
    for _ in range(_ROUNDS):
        for name in random.sample(list(task.calls), len(task.calls)):
            flush.zero_()
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            task.calls[name]()
            pair[1].record()
            events[name].append(pair)
    torch.cuda.synchronize()
    times = {name: statistics.median(p.elapsed_time(q) for p, q in pairs) * 1e3 for name, pairs in events.items()}
    return {"product": task.name, **times, "error": error / task.limit}


def main() -> None:
    """Measure all products."""
    import torch  # noqa: PLC0415 — the usage needs no GPU

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record")
    arguments = parser.parse_args()
    flush = torch.empty(_FLUSH, dtype=torch.int8, device="cuda")
    rows: list[dict[str, Any]] = []
    for task in tasks(torch):
        rows.append(measure(task, flush, torch))
        print(rows[-1], flush=True)
        arguments.out.write_text(json.dumps({"environment": describe(gpu=True), "products": rows}, indent=1) + "\n")
    sys.exit(1 if any(not row["error"] <= 1 for row in rows) else 0)


if __name__ == "__main__":
    main()
