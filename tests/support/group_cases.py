"""Cases of inner and gram over a process group: each runs on every rank."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh

import matmill.torch as mt
from matmill.dtypes import ALL
from matmill.errors import ArgumentError, CollectiveError, DTypeError, ShapeError
from matmill.reference import check
from support.ranks import SHORT_TIMEOUT_S, Ranks, die, host, refused

Array = NDArray[Any]


def _numbers(seed: int, *shape: int, dtype: str = "float32") -> Array:
    """Return the same on every rank."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(ALL[dtype].numpy)


def _shard(ranks: Ranks, k: int, *, empty: int | None = None) -> slice:
    """Return the terms of k that this rank has: the more the higher its number, and rank ``empty`` has none."""
    weights = [0 if rank == empty else rank + 1 for rank in range(ranks.world)]
    bounds = [k * sum(weights[:rank]) // sum(weights) for rank in range(ranks.world + 1)]
    return slice(bounds[ranks.rank], bounds[ranks.rank + 1])


def inner_of_all_types(ranks: Ranks) -> None:
    """Check uneven shards, one of them empty; the same bits on all ranks and in a second run."""
    for dtype in ALL:
        for k, empty in ((1000, None), (401, 0), (ranks.world - 1, None), (0, None)):
            e, f = _numbers(1, 3, k, dtype=dtype), _numbers(2, k, 5, dtype=dtype)
            own = _shard(ranks, k, empty=empty)
            mine = ranks.tensor(e[:, own]), ranks.tensor(f[own])
            d = mt.inner(*mine, group=ranks.group)
            assert check(host(d), e, f), (dtype, k)
            assert ranks.same_everywhere(d)
            assert torch.equal(d, mt.inner(*mine, group=ranks.group))


def scalars_and_c(ranks: Ranks) -> None:
    """Check that alpha, beta and C count once, not once a rank, and are rounded once.

    What is multiplied by 0 is not read.
    """
    k = 500
    own = _shard(ranks, k)
    for dtype in ALL:
        e, f, c = _numbers(1, 4, k, dtype=dtype), _numbers(2, k, 6, dtype=dtype), _numbers(3, 4, 6, dtype=dtype)
        mine = ranks.tensor(e[:, own]), ranks.tensor(f[own])
        d = mt.inner(*mine, c=ranks.tensor(c), alpha=-0.5, beta=2, group=ranks.group)
        assert check(host(d), e, f, c, alpha=-0.5, beta=2.0), dtype
        row = mt.inner(*mine, c=ranks.tensor(c[:1]), beta=1.5, group=ranks.group)
        assert check(host(row), e, f, c[:1], beta=1.5), dtype
        out = torch.full_like(d, torch.nan)
        lost = torch.full_like(d, torch.nan)
        assert mt.inner(*mine, c=lost, beta=0, out=out, group=ranks.group) is out
        assert check(host(out), e, f), dtype
        nothing = mt.inner(*(x * torch.nan for x in mine), c=ranks.tensor(c), alpha=0, beta=1, group=ranks.group)
        assert torch.equal(nothing, ranks.tensor(c))
    # Without a group, these keywords mean the same.
    whole = ranks.tensor(e), ranks.tensor(f)
    assert check(host(mt.inner(*whole, c=ranks.tensor(c), alpha=3, beta=-1)), e, f, c, alpha=3.0, beta=-1.0)


def grams(ranks: Ranks) -> None:
    """Check Gram matrices: symmetric to the bit, of uneven and empty shards, packed and sent whole."""
    for dtype in ALL:
        large = ((10, 515, None),) if dtype == "float32" else ()
        for k, n, empty in ((700, 9, None), (333, 65, ranks.world - 1), (1, 4, None), *large):
            x = _numbers(k, k, n, dtype=dtype)
            mine = ranks.tensor(x[_shard(ranks, k, empty=empty)])
            d = mt.gram(mine, group=ranks.group)
            assert check(host(d), np.ascontiguousarray(x.T), x), (dtype, k, n)
            assert torch.equal(d, d.mT)
            assert ranks.same_everywhere(d)
            c = _numbers(7, n, n, dtype=dtype)
            added = mt.gram(mine, c=ranks.tensor(c), alpha=0.5, beta=1, group=ranks.group)
            assert check(host(added), np.ascontiguousarray(x.T), x, c, alpha=0.5, beta=1.0), (dtype, k, n)


def grams_of_one(ranks: Ranks) -> None:
    """Check that without a group a Gram matrix has derivatives."""
    x = ranks.tensor(_numbers(1, 8, 3, dtype="float64")).requires_grad_()
    mt.gram(x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach().sum(1, keepdim=True).expand(8, 3))
    assert torch.allclose(mt.gram(x).detach(), mt.gram(x.detach()))


def numbers_that_are_not_finite(ranks: Ranks) -> None:
    """Check that NaN and infinities on one rank reach the rows and columns that they belong to, on all ranks."""
    e, f = _numbers(1, 4, 40), _numbers(2, 40, 4)
    e[1, -1], f[-1, 2], f[-2, 0] = np.nan, np.inf, -np.inf
    own = _shard(ranks, 40)
    d = mt.inner(ranks.tensor(e[:, own]), ranks.tensor(f[own]), group=ranks.group)
    assert check(host(d), e, f)
    x = _numbers(3, 40, 5)
    x[-1, 3] = np.nan
    gram = host(mt.gram(ranks.tensor(x[own]), group=ranks.group))
    assert np.isnan(gram[3]).all()
    assert np.isnan(gram[:, 3]).all()
    assert np.isfinite(np.delete(np.delete(gram, 3, 0), 3, 1)).all()


def several_in_flight(ranks: Ranks) -> None:
    """Check that pending results do not disturb each other and that operands may be overwritten.

    A second wait gives the same tensor.
    """
    e, f = _numbers(1, 3, 90), _numbers(2, 90, 3)
    own = _shard(ranks, 90)
    left, right = ranks.tensor(e[:, own]), ranks.tensor(f[own])
    first = mt.inner(left, right, alpha=2, group=ranks.group, async_op=True)
    second = mt.gram(right, group=ranks.group, async_op=True)
    left.fill_(torch.nan)
    right.fill_(torch.nan)
    d = first.wait()
    assert check(host(d), e, f, alpha=2.0)
    assert first.done()
    assert first.wait() is d
    assert check(host(second.wait()), np.ascontiguousarray(f.T), f)
    alone = mt.inner(ranks.tensor(e), ranks.tensor(f), async_op=True)  # a group of one is ready at once
    assert alone.done()
    assert check(host(alone.wait()), e, f)


def groups_of_two(ranks: Ranks) -> None:
    """Check that ranks of other groups have their own sums; a mesh of one dimension is as good as its group."""
    pairs = [(rank, rank + 1) for rank in range(0, ranks.world - 1, 2)]
    groups = [dist.new_group(list(pair)) for pair in pairs]
    x = _numbers(ranks.rank // 2, 31, 3)
    mine = ranks.tensor(x[: 20 if ranks.rank % 2 else 11] if ranks.rank % 2 == 0 else x[11:])
    d = mt.gram(mine, group=groups[ranks.rank // 2])
    assert check(host(d), np.ascontiguousarray(x.T), x)
    if len(pairs) > 1:
        other = groups[1 - ranks.rank // 2]
        refused(ArgumentError, lambda: mt.gram(mine, group=other), "that this rank belongs to")
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    e = ranks.tensor(_numbers(ranks.rank, 2, 3))
    assert torch.equal(mt.inner(e, e.mT, group=mesh), mt.inner(e, e.mT, group=ranks.group))


def refusals(ranks: Ranks) -> None:
    """Check that what does not fit is refused before anything is sent."""
    e, f = ranks.tensor(_numbers(1, 3, 8)), ranks.tensor(_numbers(2, 8, 4))
    group = ranks.group
    refused(ShapeError, lambda: mt.inner(e, f[:7], group=group), "(8, n): as many rows as e has columns")
    refused(ShapeError, lambda: mt.inner(e[0], f, group=group), "two dimensions, (m, k)")
    refused(ShapeError, lambda: mt.inner(e, f, c=e, beta=1, group=group), "the result's (3, 4)")
    refused(ShapeError, lambda: mt.inner(e, f, out=e, group=group), "the result's (3, 4)")
    refused(DTypeError, lambda: mt.gram(e.long(), group=group), "dtype int64")
    refused(DTypeError, lambda: mt.inner(e, f, c=f.double(), beta=1, group=group), "torch.float64")
    refused(ArgumentError, lambda: mt.inner(e, f, c=f, group=group), "Pass beta")
    refused(ArgumentError, lambda: mt.inner(e, f, beta=1.0, group=group), "Pass c")
    refused(ArgumentError, lambda: mt.gram(e, group="world"), "group=torch.distributed.group.WORLD")
    refused(ArgumentError, lambda: mt.gram(e.clone().requires_grad_(), group=group), "torch.no_grad()")
    with torch.no_grad():
        assert mt.gram(e.clone().requires_grad_(), group=group).shape == (8, 8)


def emulated(ranks: Ranks) -> None:
    """Compute each rank's part by the GPU kernels' own PTX, on the first two ranks."""
    if ranks.device.type != "cpu":
        return
    group = dist.new_group([0, 1])
    if ranks.rank > 1:
        return
    x = _numbers(1, 128, 3)
    mine = ranks.tensor(x[:70] if ranks.rank else x[70:])
    os.environ["MATMILL_EXECUTOR"] = "emulator"
    try:
        d = mt.gram(mine, group=group)
    finally:
        del os.environ["MATMILL_EXECUTOR"]
    assert check(host(d), np.ascontiguousarray(x.T), x)


def a_rank_that_ends(ranks: Ranks) -> None:
    """Check that the others get an error that names the group, within its timeout."""
    x = ranks.tensor(_numbers(1, 10, 3))
    if ranks.backend == "nccl":  # else the host does not wait, and torch's watchdog ends the process
        os.environ |= {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    group = dist.new_group(timeout=timedelta(seconds=SHORT_TIMEOUT_S))
    mt.gram(x, group=group)
    if ranks.rank == ranks.world - 1:
        die()
    refused(CollectiveError, lambda: mt.gram(x, group=group), f"a failed all_reduce over {ranks.world} ranks")


CASES = (
    inner_of_all_types,
    scalars_and_c,
    grams,
    grams_of_one,
    numbers_that_are_not_finite,
    several_in_flight,
    groups_of_two,
    refusals,
    emulated,
)
