"""What the first call of each of many products costs the host, and what repeated calls cost half a minute later.

Three streams of products: a server's rows (m at random, weights of 4096 x 4096, bfloat16), shapes at random in float32,
and batches of small float16 products. Each runs in fresh processes: with an empty kernel cache, as users begin; with an
empty one and MATMILL_COMPILE=wait, which fills it; with that one, filled; and, on a GPU, by torch alone. The first two
call some of their products again after ``--rest`` seconds: with all kernels there, both must take the same.

    PYTHONPATH=src python benchmarks/first_calls.py --count 500 --seed 1 --out first_calls_h200.json
    PYTHONPATH=src python benchmarks/first_calls.py --count 60 --rest 5 --device stand-in   # without a GPU

A GPU is idle before each timed call, and what it has left to do afterwards is not part of the time. Stand-ins for
torch's tensors and the driver leave matmill's own part: choosing, compiling, reading the cache, preparing launches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from lab.records import by_line
from matmill.bench.environment import describe
from matmill.runtime import gpu

HERE = Path(__file__).resolve().parent
#: Products that are called again, calls of a round, and rounds of each.
_REPEATED, _CALLS, _ROUNDS = 40, 50, 7
#: Calls that take longer count as stalls, in seconds; the first ones may.
_STALLS, _BEGINNING = (0.02, 0.1), 3

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


class Stream(NamedTuple):
    """Products by their element type, and the shapes of both operands as a random number generator gives them."""

    dtype: str
    draw: Callable[[random.Random], Shapes]


def _rows(generator: random.Random) -> Shapes:
    return (generator.randint(1, 4096), 4096), (4096, 4096)


def _shapes(generator: random.Random) -> Shapes:
    m, n, k = (int(2 ** generator.uniform(0, 12)) for _ in range(3))
    return (m, k), (k, n)


def _batches(generator: random.Random) -> Shapes:
    batch = int(2 ** generator.uniform(1, 11))
    m, n, k = (int(2 ** generator.uniform(1, 8)) for _ in range(3))
    return (batch, m, k), (batch, k, n)


STREAMS = {
    "rows": Stream("bfloat16", _rows),
    "shapes": Stream("float32", _shapes),
    "batches": Stream("float16", _batches),
}


@dataclass(frozen=True)
class Run:
    """A stream in one process: its products, on which device, by ``matmill`` or ``torch``.

    Some are called again after ``rest`` seconds; none if that is negative.
    """

    stream: str
    seed: int
    count: int
    device: str
    by: str = "matmill"
    rest: float = -1.0

    def products(self) -> list[Shapes]:
        """Return the shapes of all operands, always the same for a seed.

        >>> Run("rows", 1, 5, "stand-in").products()[0]
        ((86, 4096), (4096, 4096))
        """
        generator = random.Random(f"{self.stream} {self.seed}")  # noqa: S311 — to be repeated, not to be secret
        return [STREAMS[self.stream].draw(generator) for _ in range(self.count)]

    def seconds(self) -> dict[str, Any]:
        """Return the seconds of the import, of each first call in this process, and of repeated calls."""
        machine = _machine(self.device)
        begin = time.perf_counter()
        multiply = machine.by_torch if self.by == "torch" else import_module("matmill").matmul
        importing = time.perf_counter() - begin
        tensor, first, repeated = partial(machine.tensor, STREAMS[self.stream].dtype), [], []
        for shapes in self.products():
            a, b = map(tensor, shapes)
            machine.wait()
            start = time.perf_counter()
            multiply(a, b)
            first.append(time.perf_counter() - start)
        machine.wait()
        if self.rest >= 0:
            time.sleep(self.rest)
            again = self.products()[:: max(1, self.count // _REPEATED)]
            repeated = [_repeated(partial(multiply, *map(tensor, shapes)), machine.wait) for shapes in again]
        return {"import": importing, "first": first, "repeated": repeated}

    def in_process(self, cache: str, compile_mode: str) -> dict[str, Any]:
        """Return :meth:`seconds` of a fresh process with a cache folder."""
        path = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
        own = {"MATMILL_CACHE_DIR": cache, "MATMILL_COMPILE": compile_mode, "PYTHONPATH": os.pathsep.join(path)}
        environment = {**os.environ, **own}
        environment.pop("MATMILL_CACHE", None)
        code = "import json, sys, first_calls; print(json.dumps(first_calls.Run(**json.loads(sys.argv[1])).seconds()))"
        command = [sys.executable, "-c", code, json.dumps(asdict(self))]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


class Machine(NamedTuple):
    """Functions that make a tensor of a type and shape, wait for the GPU, and multiply by torch, or None for that."""

    tensor: Callable[[str, tuple[int, ...]], Any]
    wait: Callable[[], object]
    by_torch: Any


def _machine(device: str) -> Machine:
    if device == "stand-in":
        from lab import stand_in  # noqa: PLC0415 — only where there is no GPU

        stand_in.install()
        return Machine(lambda dtype, shape: stand_in.Tensor(shape, dtype), lambda: None, None)
    import torch  # noqa: PLC0415 — only where there is a GPU for it

    torch.backends.cuda.matmul.allow_tf32 = False

    def tensor(dtype: str, shape: tuple[int, ...]) -> Any:
        return torch.randn(shape, device="cuda").to(getattr(torch, dtype))

    return Machine(tensor, torch.cuda.synchronize, torch.matmul)


def _repeated(call: Callable[[], Any], wait: Callable[[], object]) -> float:
    """Return the median seconds of a call among many."""
    samples = []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        wait()
        samples.append((time.perf_counter() - start) / _CALLS)
    return statistics.median(samples[1:])


def summary(first: list[float]) -> dict[str, Any]:
    """Return what matters of the seconds of first calls, in seconds and counts.

    >>> summary([0.5, 0.25, 0.001, 0.001, 0.002, 0.03])["stalls_after_beginning"]
    1
    """
    ordered = sorted(first)
    return {
        "calls": len(first),
        "median": statistics.median(first),
        "ninth_of_ten": ordered[int(0.9 * (len(first) - 1))],
        "worst": ordered[-1],
        "total": sum(first),
        **{f"over_{round(limit * 1e3)}_ms": sum(seconds > limit for seconds in first) for limit in _STALLS},
        "stalls_after_beginning": sum(seconds > _STALLS[0] for seconds in first[_BEGINNING:]),
    }


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each stream and each way of running it."""
    for name in args.streams:
        once = Run(name, args.seed, args.count, args.device)
        twice = replace(once, rest=args.rest)
        with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as filled:
            runs = {
                "empty": twice.in_process(empty, "background"),
                "empty, waiting": twice.in_process(filled, "wait"),
                "filled": once.in_process(filled, "background"),
            }
            if args.device == "gpu":
                runs["torch"] = replace(once, by="torch").in_process(filled, "wait")
        pairs = zip(runs["empty"]["repeated"], runs["empty, waiting"]["repeated"], strict=True)
        ratios = [one / other for one, other in pairs]
        steady = {"median": statistics.median(ratios), "worst": max(ratios), "products": len(ratios)}
        for way, result in runs.items():
            row = {"stream": name, "cache": way, "import": result["import"], **summary(result["first"])}
            first = [round(seconds, 7) for seconds in result["first"]]
            yield {**row, "repeated_to_waiting": steady if way == "empty" else None, "seconds": first}


def _show(row: Mapping[str, Any]) -> None:
    times = "  ".join(f"{name} {row[name] * 1e3:8.2f}" for name in ("median", "ninth_of_ten", "worst", "total"))
    stalls = f"{row['over_20_ms']:4} over 20 ms, {row['stalls_after_beginning']} of them after the third"
    repeated = row["repeated_to_waiting"]
    steady = f"; repeated calls take {repeated['median']:.3f} of waiting's" if repeated else ""
    print(f"{row['stream']:8} {row['cache']:15} {times} ms {stalls}{steady}", flush=True)


def main() -> None:
    """Measure, print and, with --out, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="products of each stream (default 500)")
    parser.add_argument("--seed", type=int, default=20261127, help="of the streams")
    parser.add_argument("--rest", type=float, default=30.0, help="seconds before repeated calls (default 30)")
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=STREAMS, help="default: all")
    parser.add_argument("--device", choices=("gpu", "stand-in"), help="default: a GPU, if there is one")
    parser.add_argument("--out", type=Path, help="write a JSON record to this file")
    args = parser.parse_args()
    args.device = args.device or ("gpu" if gpu.unavailable() is None else "stand-in")
    rows = []
    for row in measure(args):
        _show(row)
        rows.append(row)
    if args.out is not None:
        own = {name: getattr(args, name) for name in ("count", "seed", "rest", "device")}
        record = {"record": "first calls", **own, "environment": describe(gpu=args.device == "gpu"), "rows": rows}
        args.out.write_text(by_line(record, "rows"), encoding="utf-8")


if __name__ == "__main__":
    main()
