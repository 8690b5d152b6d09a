"""Derivatives of the operators, in reverse and forward mode, and their batched forms under ``vmap``.

All of them consist of differentiable operators, torch's and matmill's, so derivatives of any order exist.

The gradients of a product are products too: on a GPU the faster of torch and matmill computes each, as under
:func:`matmill.torch.enable`, unless it is differentiated again, which is torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch

from matmill.problem import SPLIT_METHODS
from matmill.torch.checks import check_fake
from matmill.torch.decide import Decider, Options, Product, by_torch
from matmill.torch.gpu import CudaGPU
from matmill.torch.host import along, finished, sums_type
from matmill.torch.schemas import FUNCTIONAL
from matmill.torch.states import batched, direct, tf32

_TRANSPOSE_ADD, _TRANSPOSE = FUNCTIONAL["transpose_add"], FUNCTIONAL["transpose"]
_INNER, _MATMUL = FUNCTIONAL["inner"], FUNCTIONAL["matmul"]
#: Options of :class:`MatMul`, in the order of its arguments, and what they are by default.
_OPTIONS = ("out_dtype", "precision", "batch_invariant")
_NO_OPTIONS = (None, None, False)

_transforming = torch._C._are_functorch_transforms_active  # noqa: SLF001 — torch has no public name for it

#: An operator, or its function that torch.func can transform.
Operator: TypeAlias = Callable[..., Any]
#: Products in pieces by class of tensor, if it has its own.
PRODUCTS_OF: dict[type, Operator] = {}
#: The dimension of each argument over which vmap runs, or None.
Dims: TypeAlias = tuple[int | None, ...]


def transpose_add(x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> Any:
    """Return the operator's result, as a function that ``torch.func`` can transform too."""
    # torch.func differentiates an autograd.Function, but not inside an operator. Compilers trace the operator.
    if not torch.compiler.is_compiling() and _transforming():
        return TransposeAdd.recorded(x, y, alpha=alpha, beta=beta)
    return _TRANSPOSE_ADD(x, y, alpha=alpha, beta=beta)


def transpose(x: Any) -> Any:
    """Return ``transpose``, as :func:`transpose_add` does."""
    if not torch.compiler.is_compiling() and _transforming():
        return Transpose.recorded(x)
    return _TRANSPOSE(x)


def inner(e: Any, f: Any) -> Any:
    """Return ``inner``, as :func:`transpose_add` does."""
    if not torch.compiler.is_compiling() and _transforming():
        return Inner.recorded(e, f)
    return _INNER(e, f)


def matmul(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
    """Return ``matmul``, as :func:`transpose_add` does; ``options`` are its keywords."""
    if not torch.compiler.is_compiling() and _transforming():
        return MatMul.recorded(a, b, bias, **options)
    return _MATMUL(a, b, bias, **options)


class TransposeAdd(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``alpha * x.mT + beta * y``: linear in both, so the gradients are the result's, transposed and scaled.

    Complex factors are conjugated, as torch's gradients are conjugates of Wirtinger derivatives.
    """

    @staticmethod
    def recorded(x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> Any:
        """Call the differentiable operator."""
        return TransposeAdd.apply(x, y, alpha, beta)

    @staticmethod
    def forward(x: Any, y: Any, alpha: Any, beta: Any) -> Any:
        """Call the operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _TRANSPOSE_ADD(x, y, alpha=alpha, beta=beta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 — torch's signature
        """Save shapes and factors; no tensor is needed."""
        x, y, ctx.alpha, ctx.beta = inputs
        ctx.shapes = x.shape, y.shape
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Return the gradients: views of the incoming gradient if factors are 1 and nothing was broadcast."""
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        x_shape, y_shape = ctx.shapes
        alpha, beta = (x.conjugate() if type(x) is complex else x for x in (ctx.alpha, ctx.beta))
        to_x = _scaled(grad.mT, alpha).sum_to_size(x_shape) if ctx.needs_input_grad[0] else None
        to_y = _scaled(grad, beta).sum_to_size(y_shape) if ctx.needs_input_grad[1] else None
        return to_x, to_y, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the operator applied to the tangents."""
        dx, dy = tangents[:2]
        x_shape, y_shape = ctx.shapes
        like = dy if dx is None else dx
        dx = like.new_zeros(()).expand(x_shape) if dx is None else dx
        dy = like.new_zeros(()).expand(y_shape) if dy is None else dy
        return transpose_add(dx, dy, alpha=ctx.alpha, beta=ctx.beta)

    @staticmethod
    def vmap(_info: Any, in_dims: Dims, x: Any, y: Any, alpha: Any, beta: Any) -> tuple[Any, int]:
        """Return the batched result, differentiable."""
        return TransposeAdd.batched(transpose_add, in_dims, x, y, alpha=alpha, beta=beta)

    @staticmethod
    def batched(operator: Operator, dims: Dims, x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> tuple[Any, int]:
        """Return the result with one more batch dimension, in front."""
        rank = max(_rank(x, dims[0]), _rank(y, dims[1]))
        return operator(_batched(x, dims[0], rank), _batched(y, dims[1], rank), alpha=alpha, beta=beta), 0


class Transpose(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``x.mT``, copied: its gradient is a transposed view."""

    @staticmethod
    def recorded(x: Any) -> Any:
        """Call the differentiable operator."""
        return Transpose.apply(x)

    @staticmethod
    def forward(x: Any) -> Any:
        """Call the operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _TRANSPOSE(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing: no gradient needs it."""

    @staticmethod
    def backward(_ctx: Any, *grads: Any) -> Any:
        """Return a view of the incoming gradient."""
        return grads[0].mT

    @staticmethod
    def jvp(_ctx: Any, *tangents: Any) -> Any:
        """Return the operator applied to the tangent."""
        return transpose(tangents[0])

    @staticmethod
    def vmap(_info: Any, in_dims: Dims, x: Any) -> tuple[Any, int]:
        """Return the batched result, differentiable."""
        return Transpose.batched(transpose, in_dims, x)

    @staticmethod
    def batched(operator: Operator, dims: Dims, x: Any) -> tuple[Any, int]:
        """Return the result with one more batch dimension, in front."""
        return operator(_in_front(x, dims[0])), 0


class MatMul(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """``a @ b + bias``: the gradients are ``grad @ b.mH``, ``a.mH @ grad`` and sums, with vectors as matrices."""

    @staticmethod
    def recorded(
        a: Any,
        b: Any,
        bias: Any = None,
        *,
        activation: str | None = None,
        out_dtype: Any = None,
        precision: str | None = None,
        batch_invariant: bool = False,
    ) -> Any:
        """Call the differentiable operator, and torch's own activation, whose derivative needs its argument.

        That argument has the accumulator's type, so that the result is the same as without derivatives.
        """
        if activation is None:
            return MatMul.apply(a, b, bias, out_dtype, precision, batch_invariant)
        check_fake("matmul", (a, b, bias), {"activation": activation, "out_dtype": out_dtype, "precision": precision})
        product = MatMul.apply(a, b, bias, sums_type(a.dtype, out_dtype or a.dtype), precision, batch_invariant)
        return finished(product, None, activation).to(out_dtype or a.dtype)

    @staticmethod
    def forward(a: Any, b: Any, bias: Any, *options: Any) -> Any:
        """Call the operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _MATMUL(a, b, bias, **dict(zip(_OPTIONS, options, strict=True)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what gradients need: for that of one operand the other one. Tangents need both."""
        a, b, bias, ctx.out_dtype, ctx.precision, ctx.batch_invariant = inputs
        to_a, to_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if to_b else None, b if to_a else None)
        ctx.save_for_forward(a, b)
        ctx.shape, ctx.bias_shape = output.shape, None if bias is None else bias.shape
        ctx.operands, ctx.dtype = (a.shape, b.shape), a.dtype
        ctx.columns = b.dim() == 2 and b.stride(-1) != 1  # as the transpose of a layer's weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Return the gradients, summed over the batches of a broadcast operand and over a bias's broadcast.

        If the incoming gradient has another type than the operands, products are computed in that type. The gradient of
        a matrix b is one product, however many batches share it. Products of pieces have gradients of pieces.
        """
        a, b = ctx.saved_tensors
        (grad,) = grads
        a_shape, b_shape = ctx.operands
        if len(b_shape) == 1:
            grad = grad.unsqueeze(-1)
        if len(a_shape) == 1:
            grad = grad.unsqueeze(-2)
        own, precision = grad.to(ctx.dtype), ctx.precision
        to_a = to_b = to_bias = None
        if ctx.needs_input_grad[0]:
            right = b if b.dim() > 1 else b.unsqueeze(-1)
            left_shape = a_shape if len(a_shape) > 1 else (1, *a_shape)
            to_a = (
                _product(own, right.mH, precision, batch_invariant=ctx.batch_invariant)
                .sum_to_size(left_shape)
                .reshape(a_shape)
            )
        if ctx.needs_input_grad[1]:
            left = a if a.dim() > 1 else a.unsqueeze(0)
            if len(b_shape) == 2:
                left, own = left.reshape(-1, left.shape[-1]), own.reshape(-1, own.shape[-1])
            right_shape = b_shape if len(b_shape) > 1 else (*b_shape, 1)
            to_b = _product(own.mT, left.conj(), precision).mT if ctx.columns else _product(left.mH, own, precision)
            to_b = to_b.sum_to_size(right_shape).reshape(b_shape)
        if ctx.needs_input_grad[2]:
            shape = (*ctx.bias_shape, 1) if len(b_shape) == len(ctx.bias_shape) == 1 else ctx.bias_shape
            to_bias = grad.sum_to_size(shape).reshape(ctx.bias_shape).to(ctx.dtype)
        return to_a, to_b, to_bias, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Return the tangent by the product rule."""
        a, b = ctx.saved_tensors
        da, db, dbias = tangents[:3]
        options = {"out_dtype": ctx.out_dtype, "precision": ctx.precision, "batch_invariant": ctx.batch_invariant}
        terms = [] if da is None else [matmul(da, b, **options)]
        terms += [] if db is None else [matmul(a, db, **options)]
        if dbias is not None:
            added = along(dbias, a.dim(), b.dim()).to(ctx.out_dtype or a.dtype)
            terms.append(added + added.new_zeros(ctx.shape))
        return sum(terms)

    @staticmethod
    def vmap(_info: Any, in_dims: Dims, a: Any, b: Any, bias: Any, *options: Any) -> tuple[Any, int]:
        """Return the batched result, differentiable."""
        return MatMul.batched(matmul, in_dims, a, b, bias, **dict(zip(_OPTIONS, options, strict=True)))

    @staticmethod
    def batched(
        operator: Operator,
        dims: Dims,
        a: Any,
        b: Any,
        bias: Any = None,
        *,
        activation: str | None = None,
        out_dtype: Any = None,
        precision: str | None = None,
        batch_invariant: bool = False,
    ) -> tuple[Any, int]:
        """Return the result with one more batch dimension, in front. Vectors become matrices.

        A bias that differs between products is added by torch, and torch then applies the activation too.
        """
        row, column = _rank(a, dims[0]) == 1, _rank(b, dims[1]) == 1
        options = {"activation": activation, "out_dtype": out_dtype, "precision": precision}
        options |= {"batch_invariant": batch_invariant}
        added = None
        if bias is not None and dims[2] is not None:
            one = tuple(_of_one(x, dim) for x, dim in zip((a, b, bias), dims, strict=False))
            check_fake("matmul", one, options)
            shape = along(one[2], one[0].dim(), one[1].dim()).shape
            added, bias = _in_front(bias, dims[2]).reshape(-1, *shape), None
            options |= {"activation": None, "out_dtype": sums_type(a.dtype, out_dtype or a.dtype)}
        elif bias is not None and column:
            bias = bias.reshape(-1, 1)
        a, b = _in_front(a, dims[0]), _in_front(b, dims[1])
        left, right = a.unsqueeze(-2) if row else a, b.unsqueeze(-1) if column else b
        first, second = (None if dim is None else 0 for dim in dims[:2])
        rank = max(_rank(left, first), _rank(right, second))
        product = operator(_batched(left, first, rank), _batched(right, second, rank), bias, **options)
        product = product.squeeze(-1) if column else product
        product = product.squeeze(-1 if column else -2) if row else product
        if added is None:
            return product, 0
        return finished(product, _batched(added, 0, rank - row - column), activation).to(out_dtype or a.dtype), 0


class Inner(MatMul):
    """``e @ f`` of two matrices; batches of them go to :func:`matmul`."""

    @staticmethod
    def recorded(e: Any, f: Any) -> Any:  # type: ignore[override] # no epilogue
        """Call the differentiable operator."""
        return Inner.apply(e, f, None, *_NO_OPTIONS)

    @staticmethod
    def forward(e: Any, f: Any, *_options: Any) -> Any:
        """Call the operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 — what torch.library's own autograd does
            return _INNER(e, f)


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _rank(x: Any, batch: int | None) -> int:
    """Return the dimensions of one element of a batch."""
    return int(x.dim()) - (batch is not None)


def _batched(x: Any, batch: int | None, rank: int) -> Any:
    """Return ``x`` with its batch in front of ``rank`` dimensions; unchanged without a batch: it broadcasts."""
    if batch is None:
        return x
    x = _in_front(x, batch)
    return x.reshape(x.shape[0], *[1] * (rank + 1 - x.dim()), *x.shape[1:])


def _of_one(x: Any, batch: int | None) -> Any:
    """Return an element of the batch, as a function under vmap sees ``x``."""
    return x if batch is None else x.select(batch, 0)


def _in_front(x: Any, batch: int | None) -> Any:
    return x if batch is None else x.movedim(batch, 0)


@cache
def decider(float32: str | None) -> Decider:
    """Return the decisions on products of gradients, which operators share: in a precision of pieces, or in float32."""
    return Decider(CudaGPU(), Options(float32=float32))


def in_pieces(precision: str | None) -> str | None:
    """Return a precision if it multiplies pieces, else None."""
    return precision if precision in SPLIT_METHODS else None


def _product(x: Any, y: Any, precision: str | None, *, batch_invariant: bool = False) -> Any:
    """Return ``x @ y`` from the faster of torch and matmill; if it is differentiated again or observed, from torch.

    With a precision in pieces the latter is matmill's, and so is all where torch would round to tf32, and what is
    batch-invariant.
    """
    pieces = in_pieces(precision)
    product: Operator = PRODUCTS_OF.get(type(x), matmul)
    if batch_invariant:
        return product(x, y, precision=precision, batch_invariant=True)
    on_gpu = x.device.type == "cuda" and not torch.compiler.is_compiling()
    at_once = on_gpu and direct(x, y) and not batched(x, y)
    if at_once and (pieces is None or not tf32()):
        return decider(pieces).answer(Product(x, y, None, (False, False), by_torch))
    if pieces is None:
        return torch.matmul(x, y)
    return product(x, y, precision=pieces)
