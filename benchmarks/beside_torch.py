"""matmul beside torch.matmul on one GPU: the classes of products that the README promises something about.

    python benchmarks/beside_torch.py --out benchmarks/results/matmul_h200.json --seconds 300
    python benchmarks/beside_torch.py --groups programs,steps --compiled 30 --out programs.json

Aligned products of 16 bits in all four layouts, squares and those of language models; odd sizes, each beside the
aligned product next to it; few rows; float64, tf32, and float32 with a long k. Where ``--groups`` names them, also
products that programs make (``programs``), and squares of 16 bits of any multiple of eight (``steps``). The calls are
those that users make, ``matmill.matmul(a, b)`` and ``torch.matmul(a, b)``, interleaved in random order with a cold L2.
With ``--compiled`` the first so many products of programs run through ``torch.compile(mode="max-autotune")``, too.
Kernels are compiled first, by as many processes as there are cores. Results are compared with float64 in rows drawn at
random. Exits with 1 where one is wrong.
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
#: A product is slower where it takes more than this times as long; how many of those that lose most are printed.
_SLOWER, _WORST = 1.03, 30
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
#: Squares of 16 bits that are drawn at random, from how many elements a side to how many.
_STEPS, _SEED, _SIDES = 60, 46, (128, 8192)
_B, _H, _S, _D = "bfloat16", "float16", "float32", "float64"
#: Products that programs make: what for, type, layouts, and products of a batch, m, n and k. Forward, then gradients.
_PROGRAMS: tuple[tuple[str, str, str, tuple[tuple[int, ...], ...]], ...] = (
    ("attention", _B, "nt", ((768, 197, 197, 64), (768, 257, 257, 64), (512, 77, 77, 64), (96, 1024, 1024, 64))),
    ("attention", _B, "nn", ((768, 197, 64, 197), (768, 257, 64, 257), (96, 1024, 64, 1024))),
    ("windows", _H, "nt", ((4096, 49, 49, 32), (4096, 64, 64, 32))),
    ("windows", _H, "nn", ((4096, 49, 32, 49), (4096, 64, 32, 64))),
    ("vocabulary", _B, "nt", ((8192, 50257, 768), (16, 151936, 2048), (1, 128256, 4096), (2048, 32000, 4096))),
    ("vocabulary's gradients", _B, "tn", ((50257, 768, 8192),)),
    ("vocabulary's gradients", _B, "nn", ((8192, 768, 50257),)),
    ("LoRA", _B, "nt", ((8192, 16, 4096), (8192, 4096, 16), (4096, 8, 4096), (4096, 4096, 8))),
    ("LoRA's gradients", _B, "tn", ((16, 4096, 8192),)),
    ("layers", _B, "nt", ((4096, 3072, 768), (4096, 768, 3072), (8192, 4096, 4096), (512, 11008, 4096))),
    ("router", _B, "nt", ((8192, 64, 4096),)),
    ("layers' gradients", _B, "nn", ((4096, 768, 3072), (8192, 768, 3072))),
    ("layers' gradients", _B, "tn", ((768, 3072, 4096), (3072, 768, 8192), (2304, 768, 8192), (1024, 1024, 32768))),
    ("recommender", _H, "nt", ((2048, 27, 27, 128), (2048, 1024, 479), (2048, 512, 256), (4096, 64, 13))),
    ("score", _H, "nt", ((8192, 1, 512),)),
    ("graph", _S, "nn", ((169343, 256, 128), (169343, 40, 256), (232965, 41, 602), (2708, 16, 1433))),
    ("graph's gradients", _S, "tn", ((128, 256, 169343), (256, 40, 169343))),
    ("retrieval", _H, "nt", ((1, 1000000, 128), (64, 1000000, 96), (1000, 100000, 768))),
    ("retrieval", _S, "nt", ((100, 100000, 128),)),
    ("PCA", _S, "tn", ((100, 100, 1000000), (784, 784, 60000), (16, 16, 10000000))),
    ("PCA", _D, "tn", ((50, 50, 1000000),)),
    ("k-means", _S, "nt", ((1000000, 100, 64), (60000, 10, 784), (1000000, 256, 32), (100000, 1024, 128))),
    ("small batches", _D, "nn", ((10000, 6, 6, 6), (5000, 12, 12, 12))),
    ("small batches", _S, "nn", ((20000, 4, 4, 4), (4000, 33, 33, 33))),
    ("convolution", _H, "nn", ((100352, 64, 147), (25088, 128, 1152))),
    ("fields", _H, "nt", ((65536, 256, 63), (65536, 128, 283), (262144, 64, 32))),
    ("regression", _D, "tn", ((20, 20, 1000000), (200, 1, 100000))),
    ("simulation", _D, "nn", ((1000, 1000, 1000), (500, 500, 10000))),
)  # fmt: skip


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
    batch: int = 1

    def sources(self, arch: Arch) -> Iterator[Source]:
        """Yield the translation units of the launches of the kernel chosen for ``arch``."""
        problem = packed(self.m, self.n, self.k, ALL[self.dtype], batch=self.batch, layouts=self.layouts)
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


def programs() -> Iterator[Task]:
    """Yield the products of programs, one of each kind after the other."""
    left = [(kind, dtype, layouts, list(sizes)) for kind, dtype, layouts, sizes in _PROGRAMS]
    while left:
        for _, dtype, layouts, sizes in left:
            *batch, m, n, k = sizes.pop(0)
            yield Task("programs", m, n, k, dtype, layouts, batch=batch[0] if batch else 1)
        left = [each for each in left if each[-1]]


def steps() -> Iterator[Task]:
    """Yield squares of 16 bits whose sides are multiples of eight, in either layout of B."""
    draw = random.Random(_SEED)  # noqa: S311 — sizes, no secrets
    for _ in range(_STEPS):
        side = draw.randrange(*_SIDES, 8)
        yield Task("steps", side, side, side, draw.choice((_B, _H)), draw.choice(("nn", "nt")))


def measure(task: Task, flush: Any, torch: Any, *, compiled: bool = False) -> dict[str, Any]:
    """Return microseconds of both, perhaps of a third call, and the largest error over its bound."""
    kind = getattr(torch, task.dtype)
    torch.backends.cuda.matmul.allow_tf32 = task.precision == "tf32"
    a, b = random_operands((task.m, task.n, task.k), task.dtype, task.layouts, batch=task.batch)
    calls = {"ours": lambda: matmill.matmul(a, b, precision=task.precision), "theirs": lambda: torch.matmul(a, b)}
    if compiled:
        torch.compiler.reset()
        tuned = torch.compile(torch.matmul, mode="max-autotune-no-cudagraphs", dynamic=False)
        calls["compiled"] = lambda: tuned(a, b)
        calls["compiled"]()
    result = calls["ours"]()
    if task.batch > 1:
        of = torch.randint(0, task.batch, (), device="cuda")
        result, a_one, b_one = result[of], a[of], b[of]
    else:
        a_one, b_one = a, b
    rows = torch.randint(0, task.m, (_ROWS,), device="cuda")
    wide = a_one[rows].double(), b_one.double()
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
        for name in random.sample(list(calls), len(calls)):
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
    parser.add_argument("--groups", default="", help="programs, steps, or both with a comma between them")
    parser.add_argument(
        "--compiled", type=int, default=0, metavar="COUNT", help="products that torch.compile tunes, too"
    )
    arguments = parser.parse_args()
    begin = time.monotonic()
    offered = {"programs": programs, "steps": steps}
    groups = [offered[name] for name in arguments.groups.split(",") if name] or [tasks]
    todo = [task for group in groups for task in group()][: arguments.most]
    arch = GPU.get(0).arch
    count = compile_sources((one for task in todo for one in task.sources(arch)), arch.target)
    print(f"{count} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    flush = torch.empty(_FLUSH, dtype=torch.int8, device="cuda")
    rows: list[dict[str, Any]] = []
    for task in todo:
        if time.monotonic() - begin > arguments.seconds:
            print(f"the time is over: {len(todo) - len(rows)} products are left", flush=True)
            break
        compiled = sum("compiled" in row for row in rows) < arguments.compiled and task.group == "programs"
        rows.append(measure(task, flush, torch, compiled=compiled))
    arguments.out.write_text(json.dumps({"environment": describe(gpu=True), "products": rows}, indent=1) + "\n")
    for group in dict.fromkeys(row["group"] for row in rows):
        ratios = [row["theirs"] / row["ours"] for row in rows if row["group"] == group]
        slower = sum(ratio < 1 / _SLOWER for ratio in ratios)
        print(
            f"{group}: {len(ratios)}, {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}, slower {slower}"
        )
    if tuned := [min(row["compiled"], row["theirs"]) / row["ours"] for row in rows if "compiled" in row]:
        mean = statistics.geometric_mean(tuned)
        print(f"the better of torch and compiled: {len(tuned)}, {mean:.3f}, least {min(tuned):.3f}")
    for row in sorted(rows, key=lambda row: row["theirs"] / row["ours"])[:_WORST]:
        print({name: round(each, 1) if isinstance(each, float) else each for name, each in row.items()})
    wrong = [row for row in rows if not row["error"] <= 1]
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
