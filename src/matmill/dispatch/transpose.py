"""transpose_add and transpose as operations: their shapes and scalars, their lowering, and NumPy's result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.arrays import Operand
from matmill.arrays.operand import CPU
from matmill.dispatch.validate import Operation, Request, complex_scalar, scalar
from matmill.dtypes import BITS, DType
from matmill.errors import ArgumentError
from matmill.lowering import Shape, SubProblem, lower_transpose, transpose_shape
from matmill.problem import Geam

#: Elements of a block of NumPy's, and of one row of it: its temporary arrays stay in a core's cache.
_BLOCK, _WIDEST = 2**18, 2**10

Array: TypeAlias = NDArray[Any]


def factor(value: Any, argument: str, dtype: DType) -> complex:
    """Return ``value`` as a number that scales elements of ``dtype``; integers are scaled by integers.

    Raises :class:`~matmill.errors.ArgumentError` for a value that is not a number, for a complex one that would scale
    real elements, and for a fraction that would scale integers.
    """
    if not dtype.is_integer:
        return complex_scalar(value, argument, dtype)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        whole = int(value)
    else:
        number = scalar(value, argument)
        if not number.is_integer():
            raise ArgumentError(
                argument=argument,
                got=repr(value),
                wanted=f"a whole number, for arrays of {dtype.name}",
                fix="Round it, or convert the arrays to float32.",
            )
        whole = int(number)
    # Sums wrap around, so that only the lower bits of factors matter.
    return whole & (1 << 8 * dtype.accumulator.itemsize) - 1


def without_x(request: Request) -> Request:
    """Return the request with ``y`` in place of ``x``, which is not read because alpha is 0."""
    y = request.b
    if y is None:
        return request
    owner = np.swapaxes(y.owner, -1, -2) if y.device == CPU else y.owner
    transposed = Operand(_swapped(y.shape), _swapped(y.strides), *y[2:7], owner, y.stream)
    options = request.options._replace(conjugates="a" if "b" in request.options.conjugates else "")
    return request._replace(a=transposed, b=None, alpha=request.beta, beta=0.0, options=options)


def _swapped(extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*extents[:-2], extents[-1], extents[-2])


def _shape(request: Request) -> Shape:
    return transpose_shape(tuple(request.a.shape), None if request.b is None else tuple(request.b.shape))


def _lower(request: Request, d: Operand) -> tuple[SubProblem[Geam], ...]:
    conjugates = request.options.conjugates
    return lower_transpose(request.a, request.b, d, alpha=request.alpha, conjugates=conjugates)


def _compute(request: Request, shape: Shape) -> Array:
    """Return the result by NumPy, block by block. Its bits are the kernel's, except for the payloads of NaN."""
    dtype, alpha, beta, conjugates = request.a.dtype, request.alpha, request.beta, request.options.conjugates
    out: Array = np.empty(shape, dtype.numpy) if request.out is None else request.out.owner
    if request.b is None and alpha == 0:
        out[...] = 0
        return out
    x = np.broadcast_to(np.swapaxes(request.a.owner, -1, -2), shape)
    y = None if request.b is None else np.broadcast_to(request.b.owner, shape)
    target, plain = out, y is None and alpha == 1 and not conjugates
    if plain:  # as integers, which keeps every NaN
        bits = BITS[dtype.itemsize].numpy
        x, target = x.view(bits), out.view(bits)
    add = {"i": _add_integers, "c": _add_complex}.get(dtype.numpy.kind, _add_floats)
    by_x, by_y = (dtype.accumulator.scalar(value) for value in (alpha, beta))
    for block in _blocks(shape):
        if plain:
            target[block] = x[block]
        else:
            left, right = x[block], None if y is None else y[block]
            left = left.conj() if "a" in conjugates else left
            right = right.conj() if right is not None and "b" in conjugates else right
            add(target[block], left, by_x, right, by_y)
    return out


def _blocks(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield the indices of blocks that together cover an array."""
    steps: list[int] = []
    left = _BLOCK
    for extent in reversed(shape):
        steps.insert(0, max(1, min(extent, left, left if steps else _WIDEST)))
        left //= steps[0]
    starts = (range(0, extent, step) for extent, step in zip(shape, steps, strict=True))
    for first in product(*starts):
        yield tuple(slice(start, start + step) for start, step in zip(first, steps, strict=True))


def _add_integers(out: Array, x: Array, by_x: np.generic, y: Array | None, by_y: np.generic) -> None:
    """Add integers, of which each product and sum keeps the lower bits."""
    left = x if by_x == 1 else x * by_x.astype(x.dtype)
    if y is None:
        out[...] = left
    else:
        np.add(left, y if by_y == 1 else y * by_y.astype(x.dtype), out=out)


def _add_floats(out: Array, x: Array, by_x: np.generic, y: Array | None, by_y: np.generic) -> None:
    """Add floats and round as the kernel does: beta * y, its sum with the exact alpha * x, then to ``out``'s type."""
    wide = by_x.dtype
    left: Array = x.astype(wide, copy=False)
    if y is None:
        total = left * by_x
    else:
        right = y.astype(wide, copy=False)
        if by_y != 1:
            right = right * by_y
        if by_x not in {1, -1}:
            total = _fused(left, by_x, right)
        elif wide == out.dtype:
            (np.add if by_x == 1 else np.subtract)(right, left, out=out)
            return
        else:
            total = right + left if by_x == 1 else right - left
    np.copyto(out, total, casting="unsafe")


def _add_complex(out: Array, x: Array, by_x: np.generic, y: Array | None, by_y: np.generic) -> None:
    """Add complex numbers as the kernel does: by real factors their parts, else products of which all are rounded."""
    if by_x.imag == by_y.imag == 0:
        for part in ("real", "imag"):
            right = None if y is None else getattr(y, part)
            _add_floats(getattr(out, part), getattr(x, part), by_x.real, right, by_y.real)
        return
    total = _multiplied(x, by_x)
    out[...] = total if y is None else total + _multiplied(y, by_y)


def _multiplied(x: Array, factor: np.generic) -> Array:
    """Return complex numbers times a factor; a real one multiplies their parts."""
    re, im = factor.real, factor.imag
    product = np.empty_like(x)
    product.real, product.imag = x.real * re, x.imag * re
    if im != 0:
        product.real -= x.imag * im
        product.imag += x.real * im
    return product


def _fused(x: Array, by_x: np.generic, addend: Array) -> Array:
    """Return ``x * by_x + addend``, rounded once."""
    from matmill.emulator.arith import exact, fma64  # noqa: PLC0415 — takes time to import, and is rarely needed

    if x.dtype == np.float32:
        return exact.fma32_wide(x, np.asarray(by_x), addend).astype(np.float32)
    result = np.empty(x.shape)
    fma64.fma64(x.ravel(), np.asarray(by_x), addend.ravel(), result.reshape(-1))
    return result


TRANSPOSE_ADD = Operation("x", "y", "y", _shape, _lower, _compute, beta=1.0)
#: The operation without y; its plans have their own signatures.
TRANSPOSE = Operation("x", "y", "y", _shape, _lower, _compute, beta=0.0)
