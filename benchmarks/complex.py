"""Complex products beside torch.matmul on a GPU: squares, rectangles, few outputs with a long k, and small batches.

    PYTHONPATH=src python benchmarks/complex.py --out benchmarks/results/complex_h100.json

Both are timed interleaved. Rows are compared with complex128; exits with 1 where an error is beyond its bound. Needs a
GPU and torch. ``--device cpu`` times small products on the host, as a trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from statistics import geometric_mean
from typing import Any, NamedTuple

from lab.records import beside_torch
from lab.tensors import random_operands
from matmill.dispatch.plan_cache import completed
from matmill.dtypes import COMPLEX
from matmill.jit.compile import compile_source
from matmill.ops import matmul, matmul_call
from matmill.plan import prepare
from matmill.runtime.gpu import GPU

_SQUARES = tuple((n, n, n) for n in (128, 192, 256, 384, 512, 640, 768, 1000, 1024, 1500, 2048, 3000, 4096))
_RECTANGLES = (
    (128, 128, 4096), (128, 4096, 128), (4096, 128, 128), (256, 1024, 4096), (4096, 256, 1024), (1024, 4096, 256),
    (512, 512, 2048), (2048, 512, 512), (2048, 2048, 128), (4096, 4096, 128), (129, 257, 513), (1023, 1025, 511),
    (2047, 333, 777), (128, 2048, 2048), (4096, 2048, 1024), (1000, 200, 3000), (200, 3333, 400),
)  # fmt: skip
_TALL = tuple((*few, k) for few in ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (3, 16)) for k in (20_000, 1_000_000))


class Task(NamedTuple):
    """A batch of products; in layouts ``"nt"`` b is a lazy conjugate, as of a Gram matrix."""

    group: str
    sizes: tuple[int, int, int]
    dtype: str
    layouts: str = "nn"
    batch: int = 1

    def tensors(self, device: str) -> tuple[Any, Any, Any]:
        """Return random operands and a result."""
        a, b = random_operands(self.sizes, self.dtype, self.layouts, batch=self.batch, device=device)
        return a, b.conj() if self.layouts == "nt" else b, a.new_empty((*a.shape[:-1], self.sizes[1]))


def tasks(most: int) -> Iterator[Task]:
    """Yield all products of at most so many terms."""
    for dtype in COMPLEX:
        every = [Task("squares and rectangles", sizes, dtype) for sizes in (*_SQUARES, *_RECTANGLES)]
        every += [Task(order, (n, n, n), dtype, order) for order in ("nt", "tn") for n in (256, 1024, 4096)]
        every += [Task("long k", sizes, dtype, "nt") for sizes in _TALL]
        small = [(n, n, n) for n in (2, 3, 4, 6, 8, 12, 16)]
        every += [Task("batches", sizes, dtype, batch=batch) for sizes in small for batch in (1_000, 50_000)]
        yield from (one for one in every if one.batch * one.sizes[0] * one.sizes[1] * one.sizes[2] <= most)


def excess(a: Any, b: Any, d: Any) -> float:
    """Return the largest error of 16 rows over the bound of sums of 2 k products."""
    rows = slice(None, None, -(-d.shape[-2] // 16))
    left, right, got = (x.resolve_conj().cdouble() for x in (a[..., rows, :], b, d[..., rows, :]))
    size = (left.real.abs() + left.imag.abs()) @ (right.real.abs() + right.imag.abs())
    bound = (2 * a.shape[-1] + 8) * COMPLEX[str(d.dtype).removeprefix("torch.")].roundoff * size
    return float(((got - left @ right).abs() / bound).nan_to_num(nan=float("inf")).max())


def compile_all(every: Sequence[Task], gpu: GPU) -> None:
    """Compile the kernels of all products, as many at once as there are cores."""
    requests = [matmul_call(a, b, out=d)[1] for a, b, d in (one.tensors("cuda") for one in every)]
    stages = [stage for one in requests if one.out for stage in prepare(one.operation.lower(one, one.out), gpu.arch)]
    sources = {source for stage in stages for source in stage.sources}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: compile_source(source, gpu.arch.target), sources))


def measure(device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each product: what it is, its kernels, seconds of matmill and of torch, and its error."""
    torch, timer = import_module("torch"), import_module("torch.utils.benchmark").Timer
    every = list(tasks(2**40 if device == "cuda" else 2**22))
    if device == "cuda":
        compile_all(every, GPU.get(0))
    for one in every:
        a, b, d = one.tensors(device)
        ready = completed(*matmul_call(a, b, out=d)).plan.ready if device == "cuda" else ()
        calls = [partial(way, a, b, out=d) for way in (matmul, torch.matmul)]
        if device == "cuda":
            nbytes = sum(x.numel() * x.element_size() for x in (a, b, d))
            both = import_module("matmill.torch.gpu").CudaGPU.seconds(calls, d, nbytes)
        else:
            both = [timer("call()", globals={"call": call}).timeit(3).median for call in calls]
        matmul(a, b, out=d.fill_(float("nan")))
        kernels = [each.choice.kernel.entry for each in ready]
        yield {**one._asdict(), "kernels": kernels, "seconds": both, "excess": excess(a, b, d)}


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each type and group: torch's time over matmill's."""
    for name in dict.fromkeys((row["dtype"], row["group"]) for row in rows):
        own = [row["seconds"][1] / row["seconds"][0] for row in rows if (row["dtype"], row["group"]) == name]
        yield f"{' '.join(name)}: {len(own)} products, {geometric_mean(own):.2f} times as fast (least {min(own):.2f})"


if __name__ == "__main__":
    beside_torch(__doc__, measure, summary)
