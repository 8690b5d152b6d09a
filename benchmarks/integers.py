"""Time products of integers on one GPU beside what torch has for them, and check rows of each against NumPy.

    PYTHONPATH=src python benchmarks/integers.py --out benchmarks/results/integers_h200.json

int8 runs beside ``torch._int_mm``, where that takes the shape; int32 and int64 beside ``torch.mm`` on float64, which
loses digits from 2**53 on; the conversion is not timed. Needs a GPU and torch, and takes two minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from batch_invariant import competitor
from lab.tensors import DEVICE, needs_torch
from matmill.bench.environment import describe
from matmill.runtime.clock import Clock, Competitor, StreamHandle, flush_bytes
from matmill.runtime.gpu import GPU

DTYPES, LAYOUTS, CHECKED_ROWS = ("int8", "int32", "int64"), ("nn", "nt", "tn", "tt"), [0, 17, 31]
#: Rows, columns and terms: squares, a layer for few tokens and for many, and odd sizes, whose bytes are repacked.
SIZES = ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (32, 4096, 4096), (1000, 11008, 4096), (1001, 999, 1003))


def matrix(rows: int, columns: int, dtype: str, order: str) -> Any:
    """Return a matrix of numbers of the whole range as torch's tensor: n for contiguous rows, t for columns."""
    import torch  # noqa: PLC0415 — the usage needs no torch

    kind = getattr(torch, dtype)
    shape, ends = (rows, columns) if order == "n" else (columns, rows), torch.iinfo(kind)
    result = torch.randint(ends.min, ends.max, shape, device=DEVICE, dtype=kind)
    return result if order == "n" else result.T


def library(a: Any, b: Any) -> Iterator[Competitor]:
    """Yield torch's product, unless it refuses the shape."""
    import torch  # noqa: PLC0415 — the usage needs no torch

    small = a.dtype is torch.int8
    call: Any = torch._int_mm if small else torch.mm  # noqa: SLF001 — torch has no other for int8
    a, b = (a, b) if small else (a.double(), b.double())

    def run(stream: StreamHandle) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.address)):
            call(a, b)

    with suppress(RuntimeError):
        call(a, b)
        yield Competitor("torch._int_mm" if small else "torch.mm of float64", run)


def measure(gpu: GPU, clock: Clock) -> Iterator[dict[str, Any]]:
    """Yield a row for each product: the kernel, the median seconds by name, and whether rows are NumPy's."""
    for dtype, (m, n, k), layouts in product(DTYPES, SIZES, LAYOUTS):
        a, b = matrix(m, k, dtype, layouts[:1]), matrix(k, n, dtype, layouts[1:])
        d = matrix(m, n, "int32" if dtype == "int8" else dtype, "n")
        ours, kernel = competitor(a, b, d, None, batch_invariant=False)
        runs = [Competitor("matmill", ours.run), *library(a, b)]
        gpu.synchronize()  # timed runs have a stream of their own
        timings = clock.compare(runs, seconds_each=0.1, most_rounds=25, settle=0.05)
        left, right, got = (x.cpu().numpy() for x in (a[CHECKED_ROWS], b, d[CHECKED_ROWS]))
        exact = bool((got == (left.astype(np.int64) @ right.astype(np.int64)).astype(got.dtype)).all())
        row = {"dtype": dtype, "m": m, "n": n, "k": k, "layouts": layouts, "kernel": kernel, "exact": exact}
        yield row | {"seconds": {run.name: timing.median for run, timing in zip(runs, timings, strict=True)}}


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each type: how many products are exact, and their speed relative to torch's."""
    for dtype in DTYPES:
        own = [row for row in rows if row["dtype"] == dtype]
        pairs = [tuple(row["seconds"].values()) for row in own if len(row["seconds"]) > 1]
        speed = f"{geometric_mean(theirs / ours for ours, theirs in pairs):.2f}" if pairs else "unknown"
        yield f"{dtype}: {sum(row['exact'] for row in own)} of {len(own)} exact; speed over torch's {speed}"


def main() -> None:
    """Measure, print a summary, and write the record; exit with 1 where an element is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    needs_torch()
    gpu = GPU.get(0)
    with Clock(gpu, flush_bytes(gpu.arch, cold=True)) as clock:
        rows = list(measure(gpu, clock))
    print(*summary(rows), sep="\n")
    arguments.out.write_text(json.dumps({"environment": describe(gpu=True), "rows": rows}, indent=1) + "\n", "utf-8")
    raise SystemExit(int(not all(row["exact"] for row in rows)))


if __name__ == "__main__":
    main()
