"""A product of torch's with its derivative: both, and the two products of its gradients, are decided one by one."""

from __future__ import annotations

from typing import Any

import torch

from matmill.torch.decide import ByTorch, Decider, Product
from matmill.torch.states import PLAIN, observed

#: torch's own, bound before any function of torch is replaced.
_matmul = torch.matmul


def _plain(a: Any, b: Any, _addend: Any) -> Any:
    return _matmul(a, b)


def _left_transposed(a: Any, b: Any, _addend: Any) -> Any:
    return _matmul(a.mT, b)


def _right_transposed(a: Any, b: Any, _addend: Any) -> Any:
    return _matmul(a, b.mT)


def to_left(grad: Any, b: Any, *, turned: bool) -> Product:
    """Return the product that is the gradient of a left operand; ``turned`` says that ``b`` enters transposed."""
    return Product(grad, b, None, (False, not turned), _plain if turned else _right_transposed)


def to_right(grad: Any, a: Any, *, matrix: bool, turned: bool) -> Product:
    """Return the product that is the gradient of b, in its layout: one, however many batches share a ``matrix``."""
    if matrix:
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    left, right = (grad, a) if turned else (a, grad)
    return Product(left, right, None, (True, False), _left_transposed)


class Recorded(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``a @ b + addend`` with its derivative; b may enter transposed.

    Only what a gradient needs is saved. Gradients of gradients are torch's.
    """

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, addend: Any, turned: bool, by_torch: ByTorch, decider: Decider) -> Any:  # noqa: FBT001, PLR0917 — torch passes arguments by position
        """Return the product."""
        to_a, to_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if to_b else None, b if to_a else None)
        ctx.shape = None if addend is None else addend.shape
        ctx.matrix, ctx.turned, ctx.decider = b.dim() == 2, turned, decider
        return decider.answer(Product(a, b, addend, (False, turned), by_torch))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Return the gradients of both operands and of the addend."""
        (grad,) = grads
        a, b = ctx.saved_tensors
        to_a = to_b = to_addend = None
        if ctx.needs_input_grad[0]:
            to_a = _answer(ctx.decider, to_left(grad, b, turned=ctx.turned))
        if ctx.needs_input_grad[1]:
            to_b = _answer(ctx.decider, to_right(grad, a, matrix=ctx.matrix, turned=ctx.turned))
        if ctx.needs_input_grad[2]:
            to_addend = grad.sum_to_size(ctx.shape)
        return to_a, to_b, to_addend, None, None, None


def _answer(decider: Decider, product: Product) -> Any:
    """Return a gradient's product, from torch where it is differentiated again or observed."""
    if torch.is_grad_enabled() or type(product.a) not in PLAIN or type(product.b) not in PLAIN or observed():
        return product.compute()
    return decider.answer(product)
