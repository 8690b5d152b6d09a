"""Derivatives of the operators, backwards and forwards, and their batched forms under ``vmap``.

All of them are made of torch's differentiable operators and of ours, so derivatives of any order follow.

The gradients of a product go through torch's matmul: they are long where the product is narrow (for ``inner``, m x n
times n x k), which is not what matmill's kernels are for, they may be 16-bit of any size, and torch differentiates its
own as often as one likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from matmill.torch.schemas import FUNCTIONAL

_TRANSPOSE_ADD, _TRANSPOSE = FUNCTIONAL["transpose_add"], FUNCTIONAL["transpose"]
_INNER, _MATMUL = FUNCTIONAL["inner"], FUNCTIONAL["matmul"]

_transforming = torch._C._are_functorch_transforms_active  # noqa: SLF001 — torch has no public name for it

#: An operator, or the function of it that can be transformed.
Operator: TypeAlias = Callable[..., Any]
#: Which dimension of each argument vmap runs over.
Dims: TypeAlias = tuple[int | None, ...]


def transpose_add(x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> Any:
    """The operator, as a function that ``torch.func`` can transform too."""
    # Derivatives of torch.func start from an autograd.Function, not from inside an operator. Compilers see operators.
    if not torch.compiler.is_compiling() and _transforming():
        return TransposeAdd.apply(x, y, alpha, beta)
    return _TRANSPOSE_ADD(x, y, alpha=alpha, beta=beta)


def transpose(x: Any) -> Any:
    """See :func:`transpose_add`."""
    if not torch.compiler.is_compiling() and _transforming():
        return Transpose.apply(x)
    return _TRANSPOSE(x)


def inner(e: Any, f: Any) -> Any:
    """See :func:`transpose_add`."""
    if not torch.compiler.is_compiling() and _transforming():
        return Inner.apply(e, f)
    return _INNER(e, f)


def matmul(a: Any, b: Any) -> Any:
    """See :func:`transpose_add`."""
    if not torch.compiler.is_compiling() and _transforming():
        return MatMul.apply(a, b)
    return _MATMUL(a, b)


class TransposeAdd(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``alpha * x.mT + beta * y``: linear in both, so the gradients are the result's, transposed and scaled."""

    @staticmethod
    def forward(x: Any, y: Any, alpha: Any, beta: Any) -> Any:
        """The operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _TRANSPOSE_ADD(x, y, alpha=alpha, beta=beta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 — torch's signature
        """Keeps shapes and factors; no tensor is needed."""
        x, y, ctx.alpha, ctx.beta = inputs
        ctx.shapes = x.shape, y.shape
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Views of the incoming gradient where factors are 1 and nothing was broadcast."""
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        x_shape, y_shape = ctx.shapes
        to_x = _scaled(grad.mT, ctx.alpha).sum_to_size(x_shape) if ctx.needs_input_grad[0] else None
        to_y = _scaled(grad, ctx.beta).sum_to_size(y_shape) if ctx.needs_input_grad[1] else None
        return to_x, to_y, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The operator of the tangents."""
        dx, dy = tangents[:2]
        x_shape, y_shape = ctx.shapes
        like = dy if dx is None else dx
        dx = like.new_zeros(()).expand(x_shape) if dx is None else dx
        dy = like.new_zeros(()).expand(y_shape) if dy is None else dy
        return transpose_add(dx, dy, alpha=ctx.alpha, beta=ctx.beta)

    @staticmethod
    def vmap(_info: Any, in_dims: Dims, x: Any, y: Any, alpha: Any, beta: Any) -> tuple[Any, int]:
        """Batches, differentiable."""
        return TransposeAdd.batched(transpose_add, in_dims, x, y, alpha=alpha, beta=beta)

    @staticmethod
    def batched(operator: Operator, dims: Dims, x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> tuple[Any, int]:
        """One more batch dimension, in front."""
        rank = max(_rank(x, dims[0]), _rank(y, dims[1]))
        return operator(_batched(x, dims[0], rank), _batched(y, dims[1], rank), alpha=alpha, beta=beta), 0


class Transpose(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``x.mT``, copied: its gradient is a transposed view."""

    @staticmethod
    def forward(x: Any) -> Any:
        """The operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _TRANSPOSE(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(_ctx: Any, *grads: Any) -> Any:
        """A view of the incoming gradient."""
        return grads[0].mT

    @staticmethod
    def jvp(_ctx: Any, *tangents: Any) -> Any:
        """The operator of the tangent."""
        return transpose(tangents[0])

    @staticmethod
    def vmap(_info: Any, in_dims: Dims, x: Any) -> tuple[Any, int]:
        """Batches, differentiable."""
        return Transpose.batched(transpose, in_dims, x)

    @staticmethod
    def batched(operator: Operator, dims: Dims, x: Any) -> tuple[Any, int]:
        """One more batch dimension, in front."""
        return operator(_in_front(x, dims[0])), 0


class MatMul(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``a @ b``: the gradients are ``grad @ b.mT`` and ``a.mT @ grad``, with vectors seen as matrices."""

    @staticmethod
    def forward(a: Any, b: Any) -> Any:
        """The operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _MATMUL(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 — torch's signature
        """Keeps both operands, for both directions."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Summed over the batches over which an operand was broadcast."""
        a, b = ctx.saved_tensors
        (grad,) = grads
        left, right = _as_matrices(a, b)
        if b.dim() == 1:
            grad = grad.unsqueeze(-1)
        if a.dim() == 1:
            grad = grad.unsqueeze(-2)
        to_a = (
            torch.matmul(grad, right.mT).sum_to_size(left.shape).reshape(a.shape) if ctx.needs_input_grad[0] else None
        )
        to_b = (
            torch.matmul(left.mT, grad).sum_to_size(right.shape).reshape(b.shape) if ctx.needs_input_grad[1] else None
        )
        return to_a, to_b

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The product rule."""
        a, b = ctx.saved_tensors
        da, db = tangents
        terms = [] if da is None else [matmul(da, b)]
        return sum(terms if db is None else [*terms, matmul(a, db)])

    @staticmethod
    def vmap(_info: Any, in_dims: Dims, a: Any, b: Any) -> tuple[Any, int]:
        """Batches, differentiable."""
        return MatMul.batched(matmul, in_dims, a, b)

    @staticmethod
    def batched(operator: Operator, dims: Dims, a: Any, b: Any) -> tuple[Any, int]:
        """One more batch dimension, in front; vectors become matrices, so that batches stay batches."""
        row, column = _rank(a, dims[0]) == 1, _rank(b, dims[1]) == 1
        a, b = _in_front(a, dims[0]), _in_front(b, dims[1])
        left, right = a.unsqueeze(-2) if row else a, b.unsqueeze(-1) if column else b
        first, second = (None if dim is None else 0 for dim in dims)
        rank = max(_rank(left, first), _rank(right, second))
        product = operator(_batched(left, first, rank), _batched(right, second, rank))
        product = product.squeeze(-1) if column else product
        return product.squeeze(-1 if column else -2) if row else product, 0


class Inner(MatMul):
    """``e @ f`` of two matrices; batches of them are :func:`matmul`'s."""

    @staticmethod
    def forward(e: Any, f: Any) -> Any:
        """The operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _INNER(e, f)


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _rank(x: Any, batch: int | None) -> int:
    """Dimensions of one of a batch."""
    return int(x.dim()) - (batch is not None)


def _batched(x: Any, batch: int | None, rank: int) -> Any:
    """``x`` with its batch in front of ``rank`` dimensions; without one, as it is: it broadcasts."""
    if batch is None:
        return x
    x = _in_front(x, batch)
    return x.reshape(x.shape[0], *[1] * (rank + 1 - x.dim()), *x.shape[1:])


def _in_front(x: Any, batch: int | None) -> Any:
    return x if batch is None else x.movedim(batch, 0)


def _as_matrices(a: Any, b: Any) -> tuple[Any, Any]:
    return a.unsqueeze(0) if a.dim() == 1 else a, b.unsqueeze(-1) if b.dim() == 1 else b
