"""What ``benchmarks/ranks.py`` times on the ranks of one process group, and how.

A task has a name, competitors to time and facts that its row records beside their times. All ranks make the same tasks
in the same order. On GPUs each run begins on all ranks at once and with a cold L2; its time is the slowest rank's. On
the CPU the same code runs with sizes that are 1e-4 of a GPU's: that shows that it works, and no more.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import matmill.torch as mt

#: One thing to time: enqueues it once.
Run = Callable[[], Any]

#: Operands of a task take at most this much of a GPU's memory.
_MOST_OF_MEMORY = 0.55
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 60
_FLUSHED_BYTES, _FLUSHES = 1 << 29, 6
#: Seconds of a run that is timed apart. On two H100s an all_reduce took 114 us instead of 10 where the GPUs, or the
#: hosts, had done something else for the 75 ms before it.
_LONG = 0.02


@dataclass(frozen=True)
class Task:
    """What to time, made on each rank when it comes to it."""

    name: str
    make: Callable[[Ranks], Made]


@dataclass
class Made:
    """Competitors by name, facts for the row, and what is checked: the error over the sum of all terms' sizes."""

    runs: dict[str, Run]
    facts: dict[str, Any]
    error: Callable[[], float] | None = None
    tolerance: float = 0.0
    times: dict[str, float] = field(default_factory=dict)


class Ranks:
    """One rank, its device, and a clock that all ranks read together."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.rank: int = dist.get_rank()
        self.world: int = dist.get_world_size()
        self.on_gpu = device.type == "cuda"
        self.mesh = DeviceMesh(device.type, torch.arange(self.world))
        self._tick = torch.zeros(1, device=device)
        self._flush = torch.empty(_FLUSHED_BYTES if self.on_gpu else 1, dtype=torch.uint8, device=device)

    def terms(self, goal: float, per_term: int) -> int:
        """Return as many terms of k as asked for, or as fit this GPU's memory; few on the CPU."""
        if not self.on_gpu:
            return max(self.world, int(goal * 1e-4))
        memory: int = torch.cuda.get_device_properties(self.device).total_memory
        return 64 * int(min(goal, memory * _MOST_OF_MEMORY / per_term) / 64)

    def side(self, n: int) -> int:
        """Return a side of a large product; short on the CPU."""
        return n if self.on_gpu else max(8, n // 64)

    def numbers(self, *shape: int, dtype: Any = torch.float32) -> Any:
        """Return uniform in [-1, 1), other ones on each rank."""
        return torch.empty(shape, dtype=dtype, device=self.device).uniform_(-1, 1)

    def agreed(self, x: float, how: Any = None) -> float:
        """Return the largest of all ranks' numbers, or rank 0's."""
        one = torch.tensor([x], dtype=torch.float64, device=self.device)
        dist.broadcast(one, 0) if how is None else dist.all_reduce(one, how)
        return float(one.item())

    def time(self, runs: dict[str, Run], seconds: float) -> dict[str, float]:
        """Return the median time of each, interleaved in a new random order each round, for about so many seconds.

        Those that take long are interleaved with each other alone (:data:`_LONG`).
        """
        for run in runs.values():
            run()  # compiles, and lets the backend connect
        first = {name: self.agreed(self._once(run), dist.ReduceOp.MAX) for name, run in runs.items()}
        groups = [[name for name in runs if (first[name] > _LONG) == is_long] for is_long in (False, True)]
        medians: dict[str, float] = {}
        for names in filter(None, groups):
            medians |= self._medians({name: runs[name] for name in names}, seconds, sum(first[name] for name in names))
        return {name: medians[name] for name in runs}

    def _medians(self, runs: dict[str, Run], seconds: float, once: float) -> dict[str, float]:
        rounds = int(min(_MOST_ROUNDS, max(_LEAST_ROUNDS, seconds / max(once, 1e-5))))
        order, drawn = list(runs), random.Random(0)  # noqa: S311 — the same order on every rank
        result = torch.zeros((len(runs), rounds), dtype=torch.float64)
        for number in range(rounds):
            drawn.shuffle(order)
            for name in order:
                result[list(runs).index(name), number] = self._once(runs[name])
        slowest = result.to(self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return {name: statistics.median(row) for name, row in zip(runs, slowest.tolist(), strict=True)}

    def _once(self, run: Run) -> float:
        if not self.on_gpu:
            dist.barrier()
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(_FLUSHES):  # the host enqueues the run meanwhile
            self._flush.fill_(1)
        dist.all_reduce(self._tick)  # no rank begins before all have come here
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3


def tasks() -> Iterator[Task]:
    """Yield all of them, the most wanted first."""
    shapes = ((3, "float32"), (16, "float32"), (64, "float32"), (16, "bfloat16"))
    for n, dtype in shapes:
        yield Task(f"weak inner {n}x{n} {dtype}", _weak(n, getattr(torch, dtype), gram=False))
    yield Task("weak gram 64 float32", _weak(64, torch.float32, gram=True))
    for total in (1e9, 1e7):
        for n in (3, 16):
            yield Task(f"strong inner {n}x{n} float32 k={total:.0e}", _strong(n, total, gram=False))
        yield Task(f"strong gram 64 float32 k={total:.0e}", _strong(64, total, gram=True))
    for size in (4, 36, 256, 1024, 4096, 16384, 65536, 1 << 18, 1 << 20, 1 << 24, 1 << 28):
        yield Task(f"all_reduce {size} bytes", _reduce(size))
    for dtype in ("bfloat16", "float32"):
        for n in (8192, 8191):
            for kind in ("column", "row"):
                yield Task(f"{kind}-parallel {n} {dtype}", _parallel(kind, n, getattr(torch, dtype)))
    for n, k in ((128, 2e6), (2048, 2e4)):
        yield Task(f"overlap gram {n}", _overlap(n, k))


def _operands(ranks: Ranks, n: int, k: int, dtype: Any, *, gram: bool) -> tuple[Any, Any]:
    if gram:
        x = ranks.numbers(k, n, dtype=dtype)
        return x.mT, x
    return ranks.numbers(n, k, dtype=dtype), ranks.numbers(k, n, dtype=dtype)


def _summed(e: Any, f: Any, *, gram: bool) -> Any:
    return mt.gram(f, group=dist.group.WORLD) if gram else mt.inner(e, f, group=dist.group.WORLD)


def _with_mm(e: Any, f: Any) -> Any:
    d = torch.mm(e, f)
    dist.all_reduce(d)
    return d


def _error(e: Any, f: Any, found: Any) -> float:
    """Return the largest error, over the mean size of an element's terms times their number: of float64 sums."""
    exact = torch.zeros(found.shape, dtype=torch.float64, device=found.device)
    step = 1 << 22
    for start in range(0, e.shape[1], step):
        exact += e[:, start : start + step].double() @ f[start : start + step].double()
    terms = torch.tensor([float(e.shape[1])], dtype=torch.float64, device=found.device)
    dist.all_reduce(exact)
    dist.all_reduce(terms)
    return float((found.double() - exact).abs().max() / (terms[0] / 4))


def _weak(n: int, dtype: Any, *, gram: bool) -> Callable[[Ranks], Made]:
    def make(ranks: Ranks) -> Made:
        k = ranks.terms(1e9, dtype.itemsize * n * (1 if gram else 2))
        e, f = _operands(ranks, n, k, dtype, gram=gram)
        runs: dict[str, Run] = {
            "local": lambda: mt.inner(e, f),
            "matmill": lambda: _summed(e, f, gram=gram),
            "torch.mm, all_reduce": lambda: _with_mm(e, f),
        }
        facts = {"n": n, "k_per_rank": k, "dtype": str(dtype).removeprefix("torch."), "gram": gram}
        return Made(runs, facts, lambda: _error(e, f, _summed(e, f, gram=gram)), 1e-3 if dtype.itemsize < 4 else 1e-5)

    return make


def _strong(n: int, total: float, *, gram: bool) -> Callable[[Ranks], Made]:
    def make(ranks: Ranks) -> Made:
        per_term = 4 * n * (1 if gram else 2)
        k = ranks.terms(total / ranks.world, per_term)
        e, f = _operands(ranks, n, k, torch.float32, gram=gram)
        runs: dict[str, Run] = {
            "matmill": lambda: _summed(e, f, gram=gram),
            "torch.mm, all_reduce": lambda: _with_mm(e, f),
        }
        facts = {"n": n, "k": k * ranks.world, "gram": gram}
        # What gathers all operands, and one rank alone, need the room for them beside this rank's own.
        if ranks.terms(1e12, per_term) >= k * (ranks.world + 1):
            whole_f = ranks.numbers(ranks.world * k, n)
            whole_e = whole_f.mT if gram else ranks.numbers(ranks.world, n, k)

            def gathered() -> Any:
                dist.all_gather_into_tensor(whole_f, f)
                if gram:
                    return torch.mm(whole_e, whole_f)
                dist.all_gather_into_tensor(whole_e.view(-1, k), e)
                return sum(torch.mm(*parts) for parts in zip(whole_e, whole_f.view(ranks.world, k, n), strict=True))

            runs["all_gather, torch.mm"] = gathered
            one_e = whole_e if gram else whole_e.view(n, -1)
            runs["one rank alone"] = lambda: mt.inner(one_e, whole_f)
        return Made(runs, facts, lambda: _error(e, f, _summed(e, f, gram=gram)), 1e-5)

    return make


def _reduce(size: int) -> Callable[[Ranks], Made]:
    def make(ranks: Ranks) -> Made:
        x = torch.zeros(max(1, size // 4) if ranks.on_gpu else 1 + size // 4096, device=ranks.device)
        return Made({"all_reduce": lambda: dist.all_reduce(x)}, {"bytes": x.numel() * 4})

    return make


def _parallel(kind: str, n: int, dtype: Any) -> Callable[[Ranks], Made]:
    def make(ranks: Ranks) -> Made:
        n_here = ranks.side(n)
        whole_x, whole_w = (torch.randn(n_here, n_here, device=ranks.device).to(dtype) for _ in range(2))
        in_x, in_w = (Replicate(), Shard(0)) if kind == "column" else (Shard(1), Shard(1))
        x, w = distribute_tensor(whole_x, ranks.mesh, [in_x]), distribute_tensor(whole_w, ranks.mesh, [in_w])

        def reduced(d: Any) -> Any:
            return d if kind == "column" else d.redistribute(placements=[Replicate()])

        def error() -> float:
            result = reduced(mt.linear(x, w)).full_tensor()
            exact = whole_x.double() @ whole_w.double().mT if not ranks.rank else None
            return 0.0 if exact is None else float((result.double() - exact).abs().max() / n_here)

        # Operands are the same on all ranks: rank 0's, as distribute_tensor gives them.
        runs: dict[str, Run] = {
            "matmill": lambda: reduced(mt.linear(x, w)),
            "torch": lambda: reduced(torch.nn.functional.linear(x, w)),
        }
        facts = {"kind": kind, "n": n_here, "dtype": str(dtype).removeprefix("torch.")}
        return Made(runs, facts, error, 2e-2 if dtype.itemsize < 4 else 1e-5)

    return make


def _overlap(n: int, terms: float, count: int = 8) -> Callable[[Ranks], Made]:
    def make(ranks: Ranks) -> Made:
        k = ranks.terms(terms, 4 * n * count) if ranks.on_gpu else 16
        n_here = n if ranks.on_gpu else n // 16
        xs = [ranks.numbers(k, n_here) for _ in range(count)]
        group = dist.group.WORLD

        def overlapped() -> list[Any]:
            pending = [mt.gram(x, group=group, async_op=True) for x in xs]
            return [one.wait() for one in pending]

        def worst() -> float:
            return max(_error(x.mT, x, d) for x, d in zip(xs, overlapped(), strict=True))

        runs: dict[str, Run] = {
            "local": lambda: [mt.gram(x) for x in xs],
            "one after another": lambda: [mt.gram(x, group=group) for x in xs],
            "overlapped": overlapped,
        }
        return Made(runs, {"n": n_here, "k_per_rank": k, "products": count}, worst, 1e-5)

    return make
