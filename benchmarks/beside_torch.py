"""matmul beside torch.mm on one GPU: the classes of products that the README promises something about.

    python benchmarks/beside_torch.py --out benchmarks/results/matmul_h200.json --seconds 300

Aligned products of 16 bits in all four layouts, squares and those of language models; odd sizes, each beside the
aligned product next to it; few rows; float64, tf32, and float32 with a long k. Both calls are those that users make,
``matmill.matmul(a, b)`` and ``torch.mm(a, b)``, interleaved in random order with a cold L2. Kernels are compiled first,
by as many processes as there are cores. Results are compared with float64 in rows drawn at random. Exits with 1 where
one is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matmill
from lab.compiler import compile_sources
from lab.gemm.shapes import packed
from lab.tensors import random_operands
from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.choose import choose
from matmill.dtypes import ALL
from matmill.jit.source import Source, generate
from matmill.kernel import GemmOperands
from matmill.launch import Pointer
from matmill.runtime.gpu import GPU

_FLUSH, _ROUNDS, _ROWS = 512 << 20, 9, 16
_SQUARES = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
#: Of language models: M from 1 to 8192, N and K of 1280 to 28672.
_RECTANGLES = (
    (1, 4096, 4096), (16, 8192, 4096), (64, 4096, 4096), (128, 14336, 4096), (256, 1280, 8192), (512, 4096, 14336),
    (1024, 8192, 1280), (2048, 4096, 4096), (4096, 14336, 4096), (8192, 1280, 8192), (8192, 28672, 4096),
    (8192, 4096, 14336),
)  # fmt: skip
_ODD = (
    (4097, 4097, 4097), (4096, 4095, 4096), (1023, 1023, 1023), (8191, 1000, 513), (2047, 2049, 2051),
    (3001, 3001, 3001), (5001, 4001, 3001), (4095, 4095, 4095), (8193, 4097, 1025), (1537, 1537, 1537),
    (6143, 2049, 4095), (2049, 8191, 511),
)  # fmt: skip
_LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True)
class Task:
    """A product; ``layouts`` are those of A and B: n for rows, t for columns that are contiguous."""

    group: str
    m: int
    n: int
    k: int
    dtype: str
    layouts: str = "nn"
    precision: str = "default"

    def sources(self, arch: Arch) -> Iterator[Source]:
        """Yield the translation units of the launches of the kernel chosen for ``arch``."""
        problem = packed(self.m, self.n, self.k, ALL[self.dtype], layouts=self.layouts)
        problem = replace(problem, precision=self.precision)
        pointers = (Pointer(name, 256) for name in ("A", "B", "C", "D", "workspace", "counter"))
        a, b, c, d, workspace, counter = pointers
        operands = GemmOperands(a, b, c, d, workspace=workspace, counter=counter)
        for program, _ in choose(problem, arch).kernel.steps(problem, operands):
            yield generate(program, problem.dtype)


def _aligned(extent: int) -> int:
    return round(extent / 64) * 64


def tasks() -> Iterator[Task]:
    """Yield all products, the quick groups first."""
    for m, n, k in _ODD:
        for dtype in ("bfloat16", "float16"):
            yield Task("odd", m, n, k, dtype)
            yield Task("odd's neighbour", _aligned(m), _aligned(n), _aligned(k), dtype)
    yield from (Task("few rows", m, 4096, 4096, "bfloat16", "nt") for m in (1, 2, 4, 8, 16, 32, 64))
    yield from (Task("float64", n, n, n, "float64") for n in (512, 1024, 2048, 4096, 8192))
    yield from (Task("tf32", n, n, n, "float32", "nt", "tf32") for n in (1024, 2048, 4096, 8192))
    yield from (Task("float32, long k", m, m, k, "float32") for m, k in ((64, 10**6), (256, 65536), (1000, 20000)))
    for dtype in ("bfloat16", "float16"):
        for layouts in _LAYOUTS:
            shapes = [*((n, n, n) for n in _SQUARES), *_RECTANGLES]
            yield from (Task("aligned", *shape, dtype, layouts) for shape in shapes)


def measure(task: Task, flush: Any, torch: Any) -> dict[str, Any]:
    """Return microseconds of both, and the largest error over its bound."""
    kind = getattr(torch, task.dtype)
    torch.backends.cuda.matmul.allow_tf32 = task.precision == "tf32"
    a, b = random_operands((task.m, task.n, task.k), task.dtype, task.layouts)
    calls = {"ours": lambda: matmill.matmul(a, b, precision=task.precision), "theirs": lambda: torch.mm(a, b)}
    result = calls["ours"]()
    rows = torch.randint(0, task.m, (_ROWS,), device="cuda")
    wide = a[rows].double(), b.double()
    expected, magnitude = wide[0] @ wide[1], wide[0].abs() @ wide[1].abs()
    summed = torch.finfo(torch.float64 if task.dtype == "float64" else torch.float32).eps
    rounded = 2.0**-10 if task.precision == "tf32" else torch.finfo(kind).eps / 2
    limit = magnitude * (max(task.k, 16) * summed) + rounded * (
        magnitude if task.precision == "tf32" else expected.abs()
    )
    excess = float(((result[rows].double() - expected).abs() / limit.clip(min=1e-30)).max().item())
    calls["theirs"]()
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name in random.sample(list(calls), 2):
            flush.zero_()
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            calls[name]()
            pair[1].record()
            events[name].append(pair)
    torch.cuda.synchronize()
    times = {name: statistics.median(p.elapsed_time(q) for p, q in pairs) * 1e3 for name, pairs in events.items()}
    return {**asdict(task), **times, "error": excess}


def main() -> None:
    """Measure all products until the time is over."""
    import torch  # noqa: PLC0415 — the usage needs no GPU

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record")
    parser.add_argument("--seconds", type=float, default=300, help="when to stop, default %(default)s")
    parser.add_argument("--most", type=int, default=10**6, help="of how many products")
    arguments = parser.parse_args()
    begin = time.monotonic()
    todo = list(tasks())[: arguments.most]
    arch = GPU.get(0).arch
    count = compile_sources((one for task in todo for one in task.sources(arch)), arch.target)
    print(f"{count} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    flush = torch.empty(_FLUSH, dtype=torch.int8, device="cuda")
    rows: list[dict[str, Any]] = []
    for task in todo:
        if time.monotonic() - begin > arguments.seconds:
            print(f"the time is over: {len(todo) - len(rows)} products are left", flush=True)
            break
        rows.append(measure(task, flush, torch))
    arguments.out.write_text(json.dumps({"environment": describe(gpu=True), "products": rows}, indent=1) + "\n")
    for group in dict.fromkeys(row["group"] for row in rows):
        ratios = [row["theirs"] / row["ours"] for row in rows if row["group"] == group]
        print(f"{group}: {len(ratios)}, {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
    wrong = [row for row in rows if not row["error"] <= 1]
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
