"""Random products on one GPU: each against float64, and twice with the same bits.

    python benchmarks/random_products.py --count 2000 --seconds 90

Sizes, element types, batches and layouts are drawn at random, half of the sizes multiples of eight. Of large results
rows drawn at random are compared. Exits with 1 where a result is wrong, or another one the second time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator

import matmill
from lab.gemm.shapes import packed
from lab.tensors import random_operands
from matmill.dtypes import ALL
from matmill.problem import Gemm

#: The most FMAs of a product: more would test no other code.
_MOST = 2e10
_ROWS, _PRODUCTS = 24, 48


def drawn(count: int, seed: int) -> Iterator[tuple[Gemm, str]]:
    """Yield so many problems with the layouts of A and B: n for rows, t for columns that are contiguous."""
    draw = random.Random(seed)  # noqa: S311 — sizes, no secrets

    def size(most: float) -> int:
        return int(2 ** draw.uniform(0, most))

    while count:
        batch = size(9) if draw.random() < 0.25 else 1
        m, n, k = (size(7.5 if batch > 1 else 12) for _ in range(3))
        if draw.random() < 0.15:
            m, n, k = size(6), size(6), size(18)
        if draw.random() < 0.5:
            m, n, k = (max(8, extent // 8 * 8) for extent in (m, n, k))
        if batch * m * n * k > _MOST:
            continue
        count -= 1
        layouts = draw.choice("nnt") + draw.choice("nnt")
        yield packed(m, n, k, ALL[draw.choice(tuple(ALL))], batch=batch, layouts=layouts), layouts


def excess(asked: tuple[Gemm, str]) -> float:
    """Return the largest error over its bound, of a product of fresh matrices; infinite where a second run differs."""
    import torch  # noqa: PLC0415 — the usage needs no GPU

    problem, layouts = asked
    sizes = (problem.m, problem.n, problem.k)
    a, b = random_operands(sizes, problem.dtype.name, layouts, batch=problem.batch)
    result = matmill.matmul(a, b)
    if not torch.equal(result, matmill.matmul(a, b)):
        return float("inf")
    if problem.batch > 1:
        some = torch.randint(0, problem.batch, (_PRODUCTS,), device="cuda")
        a, b, result = a[some], b[some], result[some]
    rows = torch.randint(0, problem.m, (_ROWS,), device="cuda")
    rows[0], rows[-1] = 0, problem.m - 1
    wide = a[..., rows, :].double(), b.double()
    expected = wide[0] @ wide[1]
    summed = torch.finfo(getattr(torch, problem.dtype.accumulator.name))
    sums = wide[0].abs() @ wide[1].abs() * (max(problem.k, 16) * summed.eps)
    limit = sums + problem.dtype.roundoff * (expected.abs() + sums) + problem.dtype.tiny
    return float(((result[..., rows, :].double() - expected).abs() / limit).max().item())


def main() -> None:
    """Run as many products as there is time for, by several processes: choosing and compiling takes longest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="products, default %(default)s")
    parser.add_argument("--seconds", type=float, default=90, help="when to stop, default %(default)s")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, default %(default)s")
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    begin = time.monotonic()
    wrong, worst, count = 0, 0.0, 0
    todo = list(drawn(arguments.count, arguments.seed))
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for (problem, layouts), own in zip(todo, pool.imap(excess, todo), strict=False):
            count += 1
            worst = max(worst, own)
            if not own <= 1:
                wrong += 1
                print(f"{problem} {layouts}: {own:.3g} of the allowed error", flush=True)
            if time.monotonic() - begin > arguments.seconds:
                break
        pool.terminate()
    print(f"{count} random products, {wrong} wrong, the largest error {worst:.3f} of the allowed one")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
