"""The operators on CPU tensors, by torch's own operators, rounded as the GPU's kernels round.

Each function fills ``out``, whose shape is the result's. 16-bit elements are multiplied and summed in float32 and
rounded once; sums of integers wrap around. Factors are rounded to the accumulator's type, or reduced modulo 2**32, as
in matmill's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch

from matmill.dispatch.gemm import k_chunks
from matmill.dispatch.transpose import factor
from matmill.dtypes import BY_TO, TRANSPOSES, DType, named

_HALVES = frozenset({torch.float16, torch.bfloat16})
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def transpose_add(out: Any, x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> None:
    """Compute ``out = alpha * x.mT + beta * y``; operands with factor 0 are not read."""
    dtype = named(str(out.dtype).removeprefix("torch."), "out", TRANSPOSES, conversion=BY_TO)
    alpha, beta = factor(alpha, "alpha", dtype), factor(beta, "beta", dtype)
    if alpha == 1 and beta == 1:
        torch.add(x.mT, y, out=out)
    elif dtype.part is not None and alpha.imag == beta.imag == 0:  # real factors multiply the parts
        parts = _sum(torch.view_as_real(x.mT), torch.view_as_real(y), alpha.real, beta.real, dtype.part)
        torch.view_as_real(out).copy_(parts)
    elif dtype.is_integer:
        # The lower 64 bits of the exact sum, of which the element type keeps the lower ones.
        out.copy_(_sum(x.mT.long(), y.long(), alpha, beta, dtype))
    elif out.dtype in _HALVES:
        out.copy_(_sum(x.mT.float(), y.float(), alpha, beta, dtype))
    else:
        out.copy_(_sum(x.mT, y, alpha, beta, dtype))


def transpose(out: Any, x: Any) -> None:
    """Copy ``out = x.mT``, bit by bit."""
    out.copy_(x.mT)


def matmul(
    out: Any,
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    out_dtype: Any = None,  # noqa: ARG001 — the type of out
    precision: str | None = None,  # noqa: ARG001 — torch's sums on the CPU are at least as exact as any
    batch_invariant: bool = False,
) -> None:
    """Compute ``out = activation(a @ b + bias)``, if it is to be batch-invariant row by row."""
    # torch 2.13 warns about the shape of out if a vector is viewed as a matrix.
    sums = sums_type(a.dtype, out.dtype)
    plain = bias is activation is None and a.dtype is sums and min(a.dim(), b.dim()) > 1
    if plain and not batch_invariant:
        torch.matmul(a, b, out=out)
    else:
        if batch_invariant:
            total = _by_rows(a, b, sums)
        else:
            total = torch.matmul(a, b) if a.dtype is sums else _widened(out, a, b, sums)
        out.copy_(finished(total, None if bias is None else along(bias, a.dim(), b.dim()), activation))


def sums_type(element: Any, result: Any) -> Any:
    """Return the accumulator's type for elements and a result of these types.

    >>> sums_type(torch.float32, torch.float64), sums_type(torch.bfloat16, torch.bfloat16)
    (torch.float64, torch.float32)
    """
    if element in _HALVES:
        return torch.float32
    return torch.promote_types(element, result)


def finished(product: Any, bias: Any, activation: str | None) -> Any:
    """Return ``activation(product + bias)`` in the product's type, to which a narrower bias is converted.

    >>> finished(torch.tensor([[-1.0, 1.0]]), torch.tensor([2.0, -2.0]), "relu")
    tensor([[1., 0.]])
    """
    total = product if bias is None else product + bias.to(product.dtype)
    return total if activation is None else ACTIVATIONS[activation](total)


def along(bias: Any, a_rank: int, b_rank: int) -> Any:
    """Return the bias in a shape that broadcasts to the product, which lacks an axis if a or b is a vector."""
    if a_rank == b_rank == 1:
        return bias.reshape(())
    return bias.reshape(-1) if 1 in {a_rank, b_rank} else bias


def _by_rows(a: Any, b: Any, sums: Any) -> Any:
    """Compute ``a @ b`` with the same call of torch for each row of each matrix, in the type of sums."""
    rows, right = a if a.dim() > 1 else a.unsqueeze(0), (b if b.dim() > 1 else b.unsqueeze(-1)).to(sums)
    batch = torch.broadcast_shapes(rows.shape[:-2], right.shape[:-2])
    lefts, rights = (x.expand(*batch, *x.shape[-2:]) for x in (rows, right))
    total = torch.empty(*batch, rows.shape[-2], right.shape[-1], dtype=sums)
    for at in product(*map(range, (*batch, rows.shape[-2]))):
        total[at] = torch.mv(rights[at[:-1]].mT, lefts[at].to(sums).contiguous())
    total = total if b.dim() > 1 else total.squeeze(-1)
    return total if a.dim() > 1 else total.squeeze(-1 if b.dim() == 1 else -2)


def _widened(out: Any, a: Any, b: Any, sums: Any) -> Any:
    """Compute ``a @ b`` in a wider type, converting a bounded chunk of k at a time."""
    m, n = a.shape[-2] if a.dim() > 1 else 1, b.shape[-1] if b.dim() > 1 else 1
    # torch may copy an operand for every batch over which it is broadcast.
    batch = prod(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    total = torch.zeros(out.shape, dtype=sums)
    for chunk in k_chunks(a.shape[-1], sums.itemsize * batch * (m + n)):
        rows = b[..., chunk, :] if b.dim() > 1 else b[chunk]
        total += torch.matmul(a[..., chunk].to(sums), rows.to(sums))
    return total


def _sum(x: Any, y: Any, alpha: complex, beta: complex, dtype: DType) -> Any:
    """Return the sum in the type of ``x`` and ``y``. Operands with factor 0 are skipped before factors are rounded."""
    by_x, by_y = (_scalar(value, dtype) for value in (alpha, beta))
    if alpha == 0:
        return y * by_y if beta != 0 else torch.zeros_like(y)
    if beta == 0:
        return x * by_x
    return torch.add(y if by_y == 1 else y * by_y, x, alpha=by_x)


def _scalar(value: complex, dtype: DType) -> Any:
    """Convert a scalar as kernels do. torch would refuse values beyond the range, which become infinite here."""
    return int(value.real) if dtype.is_integer else dtype.accumulator.scalar(value).item()
