"""The operators on CPU tensors, by torch's own operators, rounded as the GPU's kernels round.

Each function fills ``out``, whose shape is the result's. 16-bit elements are multiplied and summed in float32 and
rounded once; sums of integers wrap around.
"""

from __future__ import annotations

from typing import Any

import torch

_HALVES = frozenset({torch.float16, torch.bfloat16})


def transpose_add(out: Any, x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> None:
    """``out = alpha * x.mT + beta * y``; what is multiplied by 0 is not read."""
    if alpha == 1 and beta == 1:
        torch.add(x.mT, y, out=out)
    elif not out.dtype.is_floating_point:
        # The lower 64 bits of the exact sum; of those, the element type keeps the lower ones.
        out.copy_(_sum(x.mT.long(), y.long(), int(alpha), int(beta)))
    elif out.dtype in _HALVES:
        out.copy_(_sum(x.mT.float(), y.float(), alpha, beta))
    else:
        out.copy_(_sum(x.mT, y, alpha, beta))


def transpose(out: Any, x: Any) -> None:
    """``out = x.mT``, bit by bit."""
    out.copy_(x.mT)


def matmul(out: Any, a: Any, b: Any) -> None:
    """``out = a @ b``."""
    if out.dtype in _HALVES:
        out.copy_(torch.matmul(a.float(), b.float()))
    else:
        torch.matmul(a, b, out=out)


def _sum(x: Any, y: Any, alpha: Any, beta: Any) -> Any:
    if alpha == 0:
        return y * beta if beta != 0 else torch.zeros_like(y)
    if beta == 0:
        return x * alpha
    return torch.add(y if beta == 1 else y * beta, x, alpha=alpha)
