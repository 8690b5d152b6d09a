"""matmul, inner and transpose_add for JAX: derivatives and batches around one custom call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from matmill.dispatch.transpose import factor
from matmill.dtypes import ALL, ELEMENTWISE, TRANSPOSES, DType, named, result_type, summed
from matmill.errors import DTypeError
from matmill.jax import target
from matmill.jax.target import Problem

Operands: TypeAlias = tuple[Any, ...]

_ACTIVATIONS = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
}


def matmul(
    a: Any,
    b: Any,
    /,
    *,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: object = None,
    precision: str | None = None,
    batch_invariant: bool = False,
) -> Any:
    """Return ``activation(a @ b + bias)``, as :func:`matmill.matmul` with these options does.

    Arrays are JAX's, tracers among them, or NumPy's, which JAX converts. Shapes, types and options are checked when the
    call is traced, with the errors of :func:`matmill.matmul`.
    """
    a, b = _array(a, "a"), _array(b, "b")
    added = () if bias is None else (_array(bias, "bias"),)
    problem = Problem("matmul", 1.0, 0.0, activation, _wider(out_dtype, a), precision, batch_invariant)
    shape = target.result_shape(problem, (a, b, *added))
    if b.ndim == 1:
        added, b = tuple(x.reshape(-1, 1) for x in added), b[:, None]
    return _folded(problem, a if a.ndim > 1 else a[None], b, *map(jnp.atleast_2d, added)).reshape(shape)


def inner(e: Any, f: Any = None, *, out_dtype: object = None) -> Any:
    """Return ``e @ f`` for few rows and columns and a long k, as :func:`matmill.inner` does.

    Arrays and errors are as in :func:`matmul`. Without ``f`` it is ``e.T``, and the result is symmetric to the bit.
    """
    e = _array(e, "e")
    operands = (e, e if f is None else _array(f, "f"))
    problem = Problem("inner", out_dtype=_wider(out_dtype, e), swapped=(False, f is None))
    target.result_shape(problem, operands)
    return _folded(problem._replace(operation="matmul"), *operands)


def transpose_add(x: Any, y: Any, *, alpha: complex = 1.0, beta: complex = 1.0) -> Any:
    """Return ``alpha * x.swapaxes(-2, -1) + beta * y``, as :func:`matmill.transpose_add` does.

    Arrays and errors are as in :func:`matmul`. The factors are numbers that are known when the call is traced.
    """
    x, y = (_array(z, name, TRANSPOSES) for z, name in ((x, "x"), (y, "y")))
    dtype = TRANSPOSES[x.dtype.name]
    problem = Problem("transpose_add", factor(alpha, "alpha", dtype), factor(beta, "beta", dtype))
    target.result_shape(problem, (x, y))
    return _folded(problem, x, y)


def _array(x: Any, argument: str, table: Mapping[str, DType] = ALL) -> Any:
    if not isinstance(x, jax.Array | np.ndarray):
        got, fix = f"{type(x).__module__}.{type(x).__qualname__}", f"Pass jax.numpy.asarray({argument})."
        raise DTypeError(argument=argument, got=got, wanted="an array of JAX or NumPy", fix=fix)
    named(str(x.dtype), argument, table)
    return jnp.asarray(x)


def _wider(out_dtype: object, x: Any) -> str | None:
    return None if out_dtype is None else result_type(out_dtype, ELEMENTWISE[x.dtype.name]).name


def _folded(problem: Problem, *operands: Any) -> Any:
    """Return a result; products whose batch shares the right matrix are one product of all rows.

    Operands of one custom call must vary over the same axes of a ``shard_map``. JAX sums the gradient of one that did
    not.
    """
    axes = frozenset().union(*map(_axes, operands))
    a, b, *bias = operands = tuple(_varying(x, axes) for x in operands)
    shared = problem.operation == "matmul" and a.ndim > b.ndim == 2
    if not shared or problem.swapped[0] or any(x.shape[0] != 1 for x in bias):
        return _apply(problem, *operands)
    rows = _apply(problem, a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b, *bias)
    return rows.reshape(*a.shape[:-1], rows.shape[-1])


def _axes(x: Any) -> frozenset[str]:
    """Return the axes of a ``shard_map`` along which an array varies, none where JAX does not track them."""
    axes: frozenset[str] = getattr(getattr(jax.typeof(x), "mat", None), "varying", frozenset())
    return axes


def _varying(x: Any, axes: frozenset[str]) -> Any:
    missing = tuple(sorted(axes - _axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(problem: Problem, *operands: Any) -> Any:
    """Return the result for arrays of two and more dimensions; ``matmul`` may have a bias with two as the third."""
    return _batched(problem)(*operands)


def _forward(problem: Problem, *operands: Any) -> tuple[Any, Operands]:
    return _apply(problem, *operands), operands


def _backward(problem: Problem, operands: Operands, grad: Any) -> Operands:
    return (_of_sum if problem.operation == "transpose_add" else _of_product)(problem, operands, grad)


_differentiable.defvjp(_forward, _backward)
#: The same, which calls outside of ``jit`` need not trace each time.
_apply = jax.jit(_differentiable, static_argnums=0, inline=True)


def _of_product(problem: Problem, operands: Operands, grad: Any) -> Operands:
    """Return the gradients of a product, which are products of ``grad`` in the operands' type.

    That of a transposed operand is computed transposed, so that nothing is copied. An activation's argument is computed
    again.
    """
    a, b, *bias = operands
    if problem.activation is not None:
        wide = problem._replace(activation=None, out_dtype=_sums(problem, a).name)
        _, pull = jax.vjp(_ACTIVATIONS[problem.activation], _apply(wide, *operands))
        (grad,) = pull(grad.astype(wide.out_dtype))
    own, (left, right) = grad.astype(a.dtype), problem.swapped
    to_a = (b, own, (right, True)) if left else (own, b, (False, not right))
    to_b = (own, a, (True, left)) if right else (a, own, (not left, False))
    plain = problem._replace(activation=None, out_dtype=None)
    sums = [
        _summed_to(x.shape, _folded(plain._replace(swapped=swapped), first, second))
        for x, (first, second, swapped) in zip((a, b), (to_a, to_b), strict=True)
    ]
    return (*sums, *(_summed_to(x.shape, grad).astype(x.dtype) for x in bias))


def _of_sum(problem: Problem, operands: Operands, grad: Any) -> Operands:
    """Return the gradients of ``transpose_add``, scaled in the type that it computes in; integers have none.

    JAX conjugates no complex factor.
    """
    x, y = operands
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return None, None
    wide = grad.astype(TRANSPOSES[x.dtype.name].accumulator.name)
    to_x, to_y = problem.alpha * jnp.swapaxes(wide, -1, -2), problem.beta * wide
    return _summed_to(x.shape, to_x).astype(x.dtype), _summed_to(y.shape, to_y).astype(y.dtype)


def _summed_to(shape: tuple[int, ...], x: Any) -> Any:
    """Return ``x`` summed over the dimensions along which an operand of ``shape`` was broadcast."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, extent in enumerate(shape) if extent != x.shape[i]), keepdims=True)


def _sums(problem: Problem, a: Any) -> DType:
    """Return the type in which a product is summed."""
    return summed(ELEMENTWISE[a.dtype.name], ALL[problem.out_dtype or a.dtype.name]).accumulator


@cache
def _batched(problem: Problem) -> Any:
    """Return the function that calls the target, and under ``vmap`` calls it once for the whole batch."""
    function = jax.custom_batching.custom_vmap(partial(_called, problem))
    function.def_vmap(lambda size, batched, *operands: (_over_batch(problem, size, batched, *operands), True))
    return function


def _called(problem: Problem, *operands: Any) -> Any:
    """Call the target. Its result varies as the operands do, which JAX does not know of custom calls."""
    return _varying(target.call(problem, operands), _axes(operands[0]))


def _over_batch(problem: Problem, size: int, batched: Sequence[bool], *operands: Any) -> Any:
    """Return the results of a batch, which is in front of the operands that have it.

    A bias that differs between products is added by XLA, which then applies the activation too.
    """
    a, b, *bias = operands
    rank = max(x.ndim - own for x, own in zip((a, b), batched, strict=False))
    if any(batched[2:]):
        wide = problem._replace(activation=None, out_dtype=_sums(problem, a).name)
        total = _over_batch(wide, size, batched[:2], a, b) + _lifted(bias[0], size, rank)
        return _ACTIVATIONS[problem.activation](total).astype(problem.out_dtype or a.dtype)
    a, b = (_lifted(x, size, rank) if own else x for x, own in zip((a, b), batched, strict=False))
    return _folded(problem, a, b, *bias)


def _lifted(x: Any, size: int, rank: int) -> Any:
    """Return ``x`` with its batch in front of ``rank`` dimensions."""
    return x.reshape(size, *[1] * (rank + 1 - x.ndim), *x.shape[1:])
