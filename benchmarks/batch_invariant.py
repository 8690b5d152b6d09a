"""Check that rows of batch-invariant products have the same bits for every m on a GPU, and measure what that costs.

    PYTHONPATH=src python benchmarks/batch_invariant.py --out benchmarks/results/batch_invariant_h200.json

For layers of several sizes and element types: rows of a product of few rows, taken anywhere among 4096, and of a batch
of two, are compared bit by bit with those of the product of all 4096; then the kernels of both kinds are timed
interleaved, with a cold cache. ``docs/precision.md`` shows the record. Needs a GPU and torch, and takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from lab.gemm.shapes import packed
from lab.tensors import needs_torch, random_operands
from matmill.arch import Arch
from matmill.bench.environment import describe
from matmill.choose import choose
from matmill.dispatch.plan_cache import completed
from matmill.dtypes import ALL
from matmill.invariant import slice_terms
from matmill.jit.compile import compile_source
from matmill.jit.source import generate
from matmill.ops import matmul, matmul_call
from matmill.problem import Gemm
from matmill.runtime.clock import Clock, Competitor, StreamHandle, flush_bytes
from matmill.runtime.gpu import GPU

#: Element types, each with a precision, whose layers are looked at.
KINDS = (
    ("float16", None), ("bfloat16", None), ("float32", None), ("float32", "float32_tensor"), ("float32", "fp16x3"),
    ("float32", "tf32"), ("float64", None),
)  # fmt: skip
#: Columns and terms of layers.
LAYERS = ((4096, 4096), (11008, 4096), (4096, 11008), (768, 3072), (1024, 4096), (333, 777), (64, 4096))
MOST = 4096
#: Rows whose bits are compared, and those that are timed.
ROWS = (1, 2, 3, 7, 8, 16, 17, 33, 64, 100, 128, 200, 256, 300, 512, 777, 1024, 2048)
TIMED = (1, 4, 16, 64, 128, 256, 512, 1024, MOST)
#: What the record's goals are: the least share of the plain product's speed, below these rows and from there on.
FEW, GOALS = 256, (0.90, 0.97)


def problem(m: int, n: int, k: int, dtype: str, precision: str | None, *, batch_invariant: bool) -> Gemm:
    """Return the problem of a layer, whose weights are transposed."""
    name = precision or "default"
    own = replace(packed(m, n, k, ALL[dtype], layouts="nt"), precision=name)
    return replace(own, slice_k=slice_terms(n, k, ALL[dtype], name)) if batch_invariant else own


def compile_all(problems: Iterable[Gemm], arch: Arch) -> int:
    """Compile the kernels of all problems, as many at once as there are cores, and count them."""
    chosen = ((choose(one, arch).kernel, one) for one in problems)
    sources = {generate(program, one.dtype) for kernel, one in chosen for program in kernel.programs(one)}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: compile_source(source, arch.target), sources))
    return len(sources)


def different(multiply: Callable[[Any, Any], Any], a: Any, b: Any, rows: Sequence[int]) -> list[int]:
    """Return the numbers of ``rows`` of which a product has other bits than the same rows of ``a @ b``.

    They are taken from several places among those of ``a``, and in a batch of two matrices.
    """
    whole, most = multiply(a, b), a.shape[0]
    wrong = []
    for m in rows:
        firsts = {0, (most - m) // 3, most - m}
        parts = [bool((multiply(a[first : first + m], b) == whole[first : first + m]).all()) for first in firsts]
        twice = multiply(a[: 2 * m].reshape(2, m, -1), b) if 2 * m <= most else whole[:m]
        both = twice.reshape(-1, b.shape[1])
        if not all(parts) or not bool((both == whole[: both.shape[0]]).all()):
            wrong.append(m)
    return wrong


def competitor(a: Any, b: Any, d: Any, precision: str | None, *, batch_invariant: bool) -> tuple[Competitor, str]:
    """Return the product of ``a`` and ``b`` into ``d`` as a competitor, and its kernel's name and slices."""
    plan = completed(*matmul_call(a, b, precision=precision, batch_invariant=batch_invariant, out=d)).plan
    enqueue = plan.bound(1.0, 0.0)
    room = a.new_empty(plan.workspace // a.element_size() + 16)

    def run(stream: StreamHandle) -> None:
        workspace, counter = plan.stream_buffers(stream.address)
        own = workspace or -(-room.data_ptr() // 16) * 16
        enqueue((a.data_ptr(), b.data_ptr(), 0, d.data_ptr(), own, counter, 0), stream.address)

    (ready,) = plan.ready
    return Competitor("batch-invariant" if batch_invariant else "plain", run), str(ready.choice.kernel.entry)


def timed(gpu: GPU, a: Any, b: Any, precision: str | None) -> dict[str, Any]:
    """Return the kernels and the median seconds of the plain product and of the batch-invariant one, interleaved."""
    d = a.new_empty((a.shape[0], b.shape[1]))
    pairs = [competitor(a, b, d, precision, batch_invariant=flag) for flag in (False, True)]
    with Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        timings = clock.compare([one for one, _ in pairs], seconds_each=0.03, most_rounds=25, settle=0.02)
    return {"kernels": [name for _, name in pairs], "seconds": [timing.median for timing in timings]}


def measure(gpu: GPU, kinds: Sequence[tuple[str, str | None]], enough: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer and type; after ``enough`` seconds products are no longer timed."""
    begin = time.monotonic()
    every = [
        problem(m, n, k, dtype, precision, batch_invariant=flag)
        for (dtype, precision), (n, k) in product(kinds, LAYERS)
        for flag, rows in ((True, {*ROWS, MOST}), (False, TIMED))
        for m in rows
    ]
    count = compile_all(every, gpu.arch)
    print(f"{count} kernels compiled in {time.monotonic() - begin:.0f} s", flush=True)
    for (dtype, precision), (n, k) in product(kinds, LAYERS):
        a, b = random_operands((MOST, n, k), dtype, "nt")
        gpu.synchronize()  # timed runs have a stream of their own
        multiply = partial(matmul, precision=precision, batch_invariant=True)
        row: dict[str, Any] = {"dtype": dtype, "precision": precision, "n": n, "k": k}
        row["different"] = different(multiply, a, b, ROWS)
        if dtype.endswith("16"):  # bits that rounding hides
            row["different"] += different(partial(multiply, out_dtype="float32"), a, b, (1, 8, 64, 300, 1024))
        row["timed"] = {
            m: timed(gpu, a[:m], b, precision) for m in TIMED if time.monotonic() - begin < enough
        }  # fmt: skip
        yield row


def ratios(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int, float]]:
    """Yield the type and precision, m, and the plain time over the batch-invariant one, of all that was timed."""
    for row in rows:
        for m, own in row["timed"].items():
            plain, invariant = own["seconds"]
            yield " ".join(filter(None, (row["dtype"], row["precision"]))), int(m), plain / invariant


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    r"""Yield a line for each type: what has other bits, and the speeds relative to plain products.

    >>> times = {1: {"seconds": [1.0, 2.0]}, 256: {"seconds": [1.0, 1.0]}}
    >>> rows = [{"dtype": "float16", "precision": None, "n": 8, "k": 8, "different": [], "timed": times}]
    >>> print(*summary(rows), sep="\n")
    float16: same bits in all of 1 layers; speed below 256 rows 0.50 (least 0.50), from there on 1.00 (least 1.00)
    """
    speeds: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    layers: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for kind, m, ratio in ratios(rows):
        speeds[kind][m >= FEW].append(ratio)
    for row in rows:
        layers[" ".join(filter(None, (row["dtype"], row["precision"])))].append(row)
    for kind, own in layers.items():
        wrong = [f"{row['n']}x{row['k']}: m = {row['different']}" for row in own if row["different"]]
        bits = f"other bits in {'; '.join(wrong)}" if wrong else f"same bits in all of {len(own)} layers"
        few, many = map(_shown, speeds[kind])
        yield f"{kind}: {bits}; speed below {FEW} rows {few}, from there on {many}"


def _shown(speeds: Sequence[float]) -> str:
    return f"{geometric_mean(speeds):.2f} (least {min(speeds):.2f})" if speeds else "not timed"


def main() -> None:
    """Measure, print a summary, and write the record; exit with 1 where bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0, help="after these products are no longer timed")
    arguments = parser.parse_args()
    needs_torch()
    rows = list(measure(GPU.get(0), KINDS, arguments.seconds))
    print(*summary(rows), sep="\n")
    record = {"environment": describe(gpu=True), "goals": GOALS, "few": FEW, "rows": rows}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if any(row["different"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
