"""Cases of matmill's operators on DTensors: each runs on every rank of a mesh."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import matmill.torch as mt
from matmill.errors import ArgumentError
from matmill.torch import gradients
from support.ranks import Ranks, refused

R, P = Replicate(), Partial()


class _Mesh:
    """Tensors that are the same on every rank, in float64, and DTensors of them."""

    def __init__(self, ranks: Ranks, *shape: int) -> None:
        self.mesh = DeviceMesh(ranks.device.type, torch.arange(prod(shape or (ranks.world,))).reshape(shape or -1))
        self._device = ranks.device
        self._random = torch.Generator().manual_seed(len(shape))

    def numbers(self, *shape: int, dtype: Any = torch.float64) -> Any:
        """Return random numbers; where they are summed in another order, the differences are small."""
        return torch.randn(shape, generator=self._random, dtype=torch.float64).to(dtype).to(self._device)

    def put(self, x: Any, *placements: Any) -> Any:
        """Return a DTensor of ``x``; partial sums are made by a product."""
        return distribute_tensor(x, self.mesh, placements)


def _close(actual: Any, expected: Any, *placements: Any) -> None:
    """Compare all elements, and the placements where some are given: those of gradients are torch's to choose."""
    assert not placements or tuple(actual.placements) == placements, (actual.placements, placements)
    full = actual.full_tensor()
    assert full.dtype == expected.dtype
    # Of sums near 0, each rank's part may have been rounded: two of 2**-9 of it.
    near = {torch.float64: 1e-9, torch.float32: 1e-5}.get(full.dtype, 2.0**-7)
    limit = near * expected.abs().max().item()
    assert torch.allclose(full, expected, rtol=near, atol=limit), (full - expected).abs().max()


def inner_sharded_in_k(ranks: Ranks) -> None:
    """Check a partial sum, of even and uneven shards and of fewer terms than ranks; gradients."""
    at = _Mesh(ranks)
    for k in (101, 8 * ranks.world, 1):
        e, f = at.numbers(3, k), at.numbers(k, 4)
        left, right = at.put(e, Shard(1)).requires_grad_(), at.put(f, Shard(0)).requires_grad_()
        d = mt.inner(left, right)
        _close(d, e @ f, P if k >= ranks.world else R)
        d.full_tensor().square().sum().backward()
        whole = (e @ f) * 2
        _close(left.grad, whole @ f.mT)
        _close(right.grad, e.mT @ whole)
    # A replica is cut where it is; a partial sum stays one.
    _close(mt.inner(at.put(e, R), at.put(f, R)), e @ f, R)
    e, f, g = at.numbers(3, 64), at.numbers(64, 5), at.numbers(5, 2)
    _close(mt.inner(at.put(e, R), at.put(f, Shard(0))), e @ f, P)
    partial = mt.inner(at.put(e, Shard(1)), at.put(f, Shard(0)))
    _close(mt.inner(partial, at.put(g, R)), e @ f @ g, P)
    _close(torch.ops.matmill.inner(at.put(e, Shard(1)), at.put(f, Shard(0))), e @ f, P)
    _close(mt.gram(at.put(f, Shard(0))), f.mT @ f, P)


def column_and_row_parallel(ranks: Ranks) -> None:
    """Check linear layers as in tensor parallelism.

    Bias and activation come after the sum over ranks, in every type.
    """
    at = _Mesh(ranks)
    gelu = torch.nn.functional.gelu
    for dtype in (torch.float64, torch.bfloat16):
        x, w, b = (
            at.numbers(*shape, dtype=dtype) for shape in ((10, 4 * ranks.world + 1), (12, 4 * ranks.world + 1), (12,))
        )
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        expected = gelu(x.to(wide) @ w.to(wide).mT + b.to(wide)).to(dtype)
        columns = mt.linear(at.put(x, R), at.put(w, Shard(0)), at.put(b, Shard(0)), "gelu")
        _close(columns, expected, Shard(1))
        rows = mt.linear(at.put(x, Shard(1)), at.put(w, Shard(1)), at.put(b, R), "gelu")
        _close(rows, expected, R)
        data = mt.linear(at.put(x, Shard(0)), at.put(w, R), at.put(b, R), "gelu")
        _close(data, expected, Shard(0))
        plain = mt.matmul(at.put(x, Shard(1)), at.put(w.mT, Shard(0)), out_dtype=wide)
        _close(plain, x.to(wide) @ w.to(wide).mT, P)
        # The same operands without an epilogue: torch keeps its answers apart.
        _close(torch.ops.matmill.matmul(at.put(x, Shard(1)), at.put(w.mT, Shard(0))), (x @ w.mT), P)
        _close(mt.matmul(at.put(x, R), at.put(w.mT, R), activation="relu"), (x @ w.mT).relu(), R)


def products_in_pieces(ranks: Ranks) -> None:
    """Check layers in pieces and their gradients: of rows, columns and k, compiled, and where torch has to move one."""
    at = _Mesh(ranks)
    seen: list[Any] = []
    operator = gradients._MATMUL

    def noted(*tensors: Any, **options: Any) -> Any:
        seen.append(options.get("precision"))
        return operator(*tensors, **options)

    def layer(x: Any, w: Any) -> Any:
        return mt.linear(x, w, precision="float32_tensor")

    x, w, weight = (at.numbers(4 * ranks.world, 4 * ranks.world, dtype=torch.float32) for _ in range(3))
    plain = [one.clone().requires_grad_() for one in (x, w)]
    expected = plain[0] @ plain[1].mT
    wanted = torch.autograd.grad(expected, plain, weight)
    for by_x, by_w, by_d in ((Shard(0), R, Shard(0)), (R, Shard(0), Shard(1)), (Shard(1), Shard(1), P)):
        placed = [at.put(one, by).requires_grad_() for one, by in ((x, by_x), (w, by_w))]
        for of_grad in (R if by_d == P else by_d, Shard(1) if by_d == Shard(0) else Shard(0)):
            gradients._MATMUL = noted
            d = layer(*placed)
            seen.clear()
            got = torch.autograd.grad(d, placed, at.put(weight, of_grad))
            gradients._MATMUL = operator
            assert set(seen) <= {"float32_tensor"}
            assert seen or of_grad not in {R, by_d}, (by_d, of_grad)
            for one, other in zip((d, *got), (expected, *wanted), strict=True):
                _close(one, other)
        compiled_layer = torch.compile(layer, fullgraph=True, backend="aot_eager")
        d = compiled_layer(*placed)
        d.full_tensor().mul(weight).sum().backward()
        for one, other in zip((d, *(x.grad for x in placed)), (expected, *wanted), strict=True):
            _close(one, other)


def batches_and_vectors(ranks: Ranks) -> None:
    """Check batch dimensions, broadcast operands, columns of bias, and vectors."""
    at = _Mesh(ranks)
    batch = 2 * ranks.world
    a, b, c = at.numbers(batch, 5, 8), at.numbers(1, 8, 4), at.numbers(3, batch, 8, 4)
    column = at.numbers(5, 1)
    _close(mt.matmul(at.put(a, Shard(0)), at.put(b, R), bias=at.put(column, R)), a @ b + column, Shard(0))
    _close(mt.matmul(at.put(a, Shard(0)), at.put(c, Shard(1))), a @ c, Shard(1))
    tall, v = at.numbers(6 * ranks.world, 8), at.numbers(8)
    bias = at.numbers(6 * ranks.world)
    _close(mt.matmul(at.put(tall, Shard(0)), at.put(v, R), bias=at.put(bias, Shard(0))), tall @ v + bias, Shard(0))
    _close(mt.matmul(at.put(v, R), at.put(tall.mT, Shard(1))), tall @ v, Shard(0))
    _close(mt.matmul(at.put(tall.mT, Shard(1)), at.put(bias, Shard(0))), tall.mT @ bias, P)


def transposes(ranks: Ranks) -> None:
    """Check that shardings of the last two dimensions are exchanged, and that partial sums stay partial."""
    at = _Mesh(ranks)
    n = ranks.world
    x, y = at.numbers(2, 3 * n + 1, 4 * n), at.numbers(2, 4 * n, 3 * n + 1)
    for of_x, of_y in ((1, 2), (2, 1)):
        left, right = at.put(x, Shard(of_x)).requires_grad_(), at.put(y, Shard(of_y)).requires_grad_()
        _close(mt.transpose(left), x.mT, Shard(of_y))
        d = mt.transpose_add(left, right, alpha=2)
        _close(d, 2 * x.mT + y, Shard(of_y))
        d.full_tensor().mul(at.put(y, R).full_tensor()).sum().backward()
        _close(left.grad, 2 * y.mT)
    e = at.numbers(4, 16 * n)
    partial = mt.inner(at.put(e, Shard(1)), at.put(e.mT, Shard(0)))
    _close(mt.transpose_add(partial, partial), 2 * (e @ e.mT), P)
    both = (
        at.put(x[:1].expand(n, -1, -1).contiguous(), Shard(0)),
        at.put(y[:1].expand(n, -1, -1).contiguous(), Shard(0)),
    )
    _close(mt.transpose_add(*both), (x.mT + y)[:1].expand(n, -1, -1), Shard(0))


def meshes_of_two_dimensions(ranks: Ranks) -> None:
    """Check data parallel in one dimension, tensor parallel in the other."""
    if ranks.world % 2:
        return
    at = _Mesh(ranks, 2, ranks.world // 2)
    a, b = at.numbers(8, 12), at.numbers(12, 6)
    _close(mt.matmul(at.put(a, Shard(0), R), at.put(b, R, Shard(1))), a @ b, Shard(0), Shard(1))
    _close(
        mt.matmul(at.put(a, Shard(0), Shard(1)), at.put(b, R, Shard(0)), activation="relu"), (a @ b).relu(), Shard(0), R
    )
    refused(
        ArgumentError,
        lambda: mt.matmul(at.put(a, R, Shard(1)), at.put(b, R, Shard(1))),
        "b: got",
        "a Shard(1) with b Shard(0)",
    )


def refused_placements(ranks: Ranks) -> None:
    """Check that errors name the placement that works, from the functions and from the bare operators."""
    at = _Mesh(ranks)
    e, f = at.numbers(4, 16), at.numbers(16, 4)
    shard = at.put(e, Shard(1))
    refused(
        ArgumentError,
        lambda: mt.inner(shard, at.put(f, Shard(1))),
        "f: got placements e Shard(1) with f Shard(1) for inner",
        "f.redistribute(placements=[Shard(0)])",
    )
    refused(
        RuntimeError,
        lambda: torch.ops.matmill.inner(shard, at.put(f, Shard(1))),
        "f: got placements e Shard(1) with f Shard(1) for inner",
        "f.redistribute(placements=[Shard(0)])",
    )
    refused(
        RuntimeError,
        lambda: torch.ops.matmill.matmul(shard, at.put(f, Shard(0)), activation="relu"),
        "a Shard(0) with b Replicate(), or a Replicate() with b Shard(1)",
    )
    refused(
        ArgumentError, lambda: mt.transpose_add(at.put(e, Shard(0)), at.put(f, Shard(0))), "x Shard(0) with y Shard(1)"
    )
    refused(ArgumentError, lambda: mt.inner(shard, f), "f: got Tensor, beside a DTensor", "Replicate()")
    refused(ArgumentError, lambda: mt.inner(e, at.put(f, R), group=ranks.group), "f: got a DTensor", "to_local")


def compiled(ranks: Ranks) -> None:
    """Compile without graph break: column-parallel into row-parallel, its gradients, and a sharded Gram matrix.

    On two ranks: more of them would trace the same.
    """
    at = _Mesh(ranks, 2)
    n = 6
    if ranks.rank > 1:
        return

    def layers(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return mt.linear(mt.linear(x, w1, b1, "relu"), w2, b2)

    def gram(e: Any) -> Any:
        return mt.transpose_add(mt.inner(e, e.mT), mt.inner(e, e.mT))

    compiled_layers, compiled_gram = (torch.compile(one, fullgraph=True, backend="aot_eager") for one in (layers, gram))
    x, w1, b1, w2, b2 = (at.numbers(*shape) for shape in ((3, 5), (n, 5), (n,), (4, n), (4,)))
    placed = [
        at.put(one, placement).requires_grad_()
        for one, placement in ((x, R), (w1, Shard(0)), (b1, Shard(0)), (w2, Shard(1)), (b2, R))
    ]
    plain = [one.clone().requires_grad_() for one in (x, w1, b1, w2, b2)]
    expected = (plain[0] @ plain[1].mT + plain[2]).relu() @ plain[3].mT + plain[4]
    d = compiled_layers(*placed)
    _close(d, expected, R)
    d.full_tensor().square().sum().backward()
    expected.square().sum().backward()
    for mine, one in zip(placed, plain, strict=True):
        _close(mine.grad, one.grad)
    e = at.numbers(3, 8 * n)
    _close(compiled_gram(at.put(e, Shard(1))), 2 * (e @ e.mT), P)


CASES = (
    inner_sharded_in_k,
    column_and_row_parallel,
    products_in_pieces,
    batches_and_vectors,
    transposes,
    meshes_of_two_dimensions,
    refused_placements,
    compiled,
)
