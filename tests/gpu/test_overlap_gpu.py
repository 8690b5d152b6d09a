"""Launches that overlap leave what they would one after another: each reads what the one before it has just written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import matmill

ROWS, COLUMNS, STEPS = 96, 4096, 60


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_chain_without_waits_gives_the_bits_of_one_with_a_wait_after_each_launch(torch: Any, dtype: str) -> None:
    chain, alone = (_chain(torch, dtype, wait) for wait in (lambda: None, torch.cuda.synchronize))
    assert all(0.1 < matrix.abs().max() < 10 for matrix in alone)
    assert all(torch.equal(left, right) for left, right in zip(chain, alone, strict=True))


def _chain(torch: Any, dtype: str, wait: Callable[[], None]) -> tuple[Any, ...]:
    """Return sums, inner products and products, interleaved, in place and in memory that was just given back."""
    generator = torch.Generator(device="cuda")
    generator.manual_seed(7)

    def uniform(*shape: int) -> Any:
        room = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
        return room.uniform_(-1, 1, generator=generator)

    start, y = uniform(ROWS, COLUMNS), uniform(COLUMNS, ROWS)
    x, other = start.clone(), torch.empty_like(start)
    for _ in range(STEPS):
        matmill.transpose_add(x, y, alpha=0.5, beta=0.5, out=y)
        wait()
        gram = matmill.inner(y.mT, y, alpha=1 / COLUMNS)
        wait()
        matmill.matmul(gram, x, c=start, alpha=0.1, beta=1, out=other)  # which neither grows nor fades
        wait()
        x, other = other, x
    wait()
    return x, y, gram
