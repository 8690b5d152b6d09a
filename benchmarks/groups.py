"""Products of groups beside torch's grouped_mm and beside a loop of torch.mm, on one GPU.

    PYTHONPATH=src python benchmarks/groups.py --out benchmarks/results/groups_h200.json

Each case is timed twice, interleaved: on the GPU alone, and as a program sees it, with the host's part. Every result is
compared with float64. Needs a GPU and torch. ``--device cpu`` computes small cases on the host, as a trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import matmill
from lab.records import beside_torch
from matmill.dtypes import ALL

_SEED, _ROUNDS, _CALLS = 51, 7, 20
#: What terms and columns of a group are multiples of: torch's grouped_mm takes no others.
_STEP = 8


class Case(NamedTuple):
    """Groups with ``least`` to ``most`` rows (or columns, or terms of k) each; ``form`` says of which operand."""

    name: str
    form: str
    groups: int
    least: int
    most: int
    sizes: tuple[int, int]
    dtype: str = "bfloat16"

    def operands(self, device: str) -> tuple[Any, Any, Any]:
        """Return A, B and the offsets."""
        torch = import_module("torch")
        torch.manual_seed(_SEED)
        step = 1 if self.form == "rows" else _STEP
        ends = step * torch.randint(self.least // step, self.most // step + 1, (self.groups,)).cumsum(0).int()
        total, (p, q) = int(ends[-1]), self.sizes

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device=device, dtype=getattr(torch, self.dtype))

        if self.form == "rows":
            operands = random(total, p), random(self.groups, q, p).mT
        elif self.form == "terms":
            operands = random(total, p).mT, random(total, q)
        else:
            operands = random(self.groups, p, q), random(total, q).mT
        return *operands, ends.to(device)


def cases(device: str) -> Iterator[Case]:
    """Yield the cases: experts of language models and their gradients, and groups of very different sizes."""
    if device == "cpu":
        yield from (Case("trial", form, 5, 0, 9, (16, 24), "float32") for form in ("rows", "terms", "columns"))
        return
    experts = ((8, 4096, 14336), (64, 2048, 1408), (128, 2048, 768), (32, 2880, 2880))
    for rows in (16, 128, 1024):
        yield from (Case("experts", "rows", g, rows // 2, rows * 3 // 2, (k, n)) for g, k, n in experts)
    for form in ("terms", "columns"):
        yield from (Case("gradients", form, g, 128, 1024, (k, n)) for g, k, n in experts[1:])
    for name, most in (("1 to 100 rows", 100), ("1 to 2000 rows", 2000)):
        yield from (Case(name, "rows", 64, 1, most, (4096, 1024), dtype) for dtype in ("bfloat16", "float16"))
    yield Case("1 to 100 rows", "rows", 64, 1, 100, (1024, 512), "float32")
    yield Case("many small", "rows", 256, 0, 16, (64, 48), "float32")
    yield Case("many small", "rows", 256, 0, 16, (100, 50), "float16")


def bounds(offsets: Any) -> list[slice]:
    """Return the rows (or columns, or terms) of each group."""
    ends = offsets.tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def pairs(one: Case, a: Any, b: Any, groups: Sequence[slice]) -> list[tuple[Any, Any]]:
    """Return the matrices of each product as views."""
    if one.form == "rows":
        return [(a[own], b[number]) for number, own in enumerate(groups)]
    if one.form == "terms":
        return [(a[:, own], b[own]) for own in groups]
    return [(a[number], b[:, own]) for number, own in enumerate(groups)]


def excess(one: Case, products: Sequence[Any], result: Any, groups: Sequence[slice]) -> float:
    """Return the largest error over its bound, among some rows of each group."""
    dtype, worst = ALL[one.dtype], 0.0
    for number, (x, y) in enumerate(products):
        own = {"rows": lambda g=groups[number]: result[g], "columns": lambda g=groups[number]: result[:, g]}
        got = own.get(one.form, lambda n=number: result[n])()
        rows = slice(None, None, max(1, x.shape[0] // 4))
        left, right = x[rows].double(), y.double()
        sums = dtype.accumulator.roundoff * (x.shape[1] + 8)
        bound = sums * (left.abs() @ right.abs()) + dtype.roundoff * (left @ right).abs() * 2 + dtype.tiny
        error = ((got[rows].double() - left @ right).abs() / bound).nan_to_num(nan=float("inf"))
        worst = max(worst, float(error.max()) if error.numel() else 0.0)
    return worst


def wall_seconds(calls: Mapping[str, Callable[[], Any]], wait: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds of a call as a program sees them, of rounds of many calls in turn."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            wait()
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
            wait()
            samples[name].append((time.perf_counter() - begin) / _CALLS)
    return {name: median(seconds) for name, seconds in samples.items()}


def ways(one: Case, a: Any, b: Any, offsets: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the ways to compute a case by name, of those that take it."""
    torch = import_module("torch")
    products = pairs(one, a, b, bounds(offsets))
    grouped_mm = getattr(torch.nn.functional, "grouped_mm", None)
    yield "matmill", partial(matmill.grouped_mm, a, b, offsets)
    yield "matmill, lists", partial(matmill.matmul, [x for x, _ in products], [y for _, y in products])
    yield "loop", lambda: [torch.mm(x, y) for x, y in products]
    if grouped_mm is not None and one.dtype == "bfloat16" and a.is_cuda:
        yield "grouped_mm", partial(grouped_mm, a, b, offs=offsets)


def measure(device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each case: the kernel, the two times of each way, and the error."""
    torch = import_module("torch")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for one in cases(device):
        a, b, offsets = one.operands(device)
        groups = bounds(offsets)
        products = pairs(one, a, b, groups)
        calls, refused, worst = {}, {}, 0.0
        for name, call in ways(one, a, b, offsets):
            try:
                result = call()
            except RuntimeError as error:
                refused[name] = str(error).splitlines()[0]
                continue
            calls[name] = call
            if name == "matmill":
                worst = max(worst, excess(one, products, result, groups))
            elif name == "matmill, lists":
                worst = max(worst, excess(one._replace(form="terms"), products, result, groups))
        wall = wall_seconds(calls, wait)
        seconds = {}
        if device == "cuda":
            nbytes = sum(x.numel() * x.element_size() for x in (a, b))
            both = import_module("matmill.torch.gpu").CudaGPU.seconds(list(calls.values()), a, nbytes)
            seconds = dict(zip(calls, both, strict=True))
        yield {**one._asdict(), "gpu": seconds, "wall": wall, "refused": refused, "excess": worst}


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each kind of case and other way: its time over matmill's, on the GPU and with the host."""
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        for other in ("grouped_mm", "loop", "matmill, lists"):
            for clock in ("gpu", "wall"):
                ratios = [row[clock][other] / row[clock]["matmill"] for row in own if other in row[clock]]
                if ratios:
                    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
                    yield f"{name}, {other}, {clock}: {geometric_mean(ratios):.2f} ({span})"


if __name__ == "__main__":
    beside_torch(__doc__, measure, summary)
