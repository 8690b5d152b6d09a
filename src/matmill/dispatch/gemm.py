"""matmul and inner as operations: their shapes and types, their lowering, and NumPy's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from matmill.arrays import Operand, mirrors
from matmill.dispatch.activations import activate
from matmill.dispatch.validate import Operation, Options, Request
from matmill.dtypes import C64, F32, DType, result_type, summed
from matmill.errors import ArgumentError, ShapeError, unknown_name
from matmill.lowering import NARROW, Shape, SubProblem, check_broadcast, gemm_epilogue, gemm_shape, lower_gemm
from matmill.lowering.complex import lower_complex
from matmill.problem import ACTIVATIONS, PRECISIONS, SPLIT_METHODS

#: Bytes of wider copies of 16-bit operands per BLAS call: much more than BLAS's own blocks, much less than memory.
_WIDENED_BYTES = 32 * 2**20
#: Rows of a Gram matrix that are mirrored per step.
_ROWS = 64

Array: TypeAlias = NDArray[Any]


def _shape(request: Request) -> Shape:
    """Return the shape of the result of a product."""
    a, b = product_operands(request)
    operation = request.operation
    shape = gemm_shape(tuple(a.shape), tuple(b.shape), (operation.first, operation.second))
    if request.bias is not None and a.dtype.part is not None:
        raise ArgumentError(
            argument="bias",
            got=f"an array, for a product in {a.dtype.name}",
            wanted="a bias of real elements",
            fix="Pass it as c with beta=1.0, or add it to the result: both broadcast.",
        )
    if request.bias is not None and a.dtype.is_integer:
        raise _only_of_floats("bias", "an array", a.dtype, "Pass it as c=, with beta=1.")
    gemm_epilogue(request.bias, None, a.shape, b.shape)
    _check_added(request, shape)
    return shape


def _narrow_shape(request: Request) -> Shape:
    """Return the shape of the result, as :func:`_shape` does, for one product of few rows and columns."""
    a, b = product_operands(request)
    names = (request.operation.first, request.operation.second)
    for name, operand, extents in (*zip(names, (a, b), ("m, k", "k, n"), strict=True),):
        if len(operand.shape) != 2:
            raise ShapeError(
                argument=name,
                got=f"shape {tuple(operand.shape)}",
                wanted=f"two dimensions ({extents})",
                fix="Use matmul for vectors and batches, or reshape it.",
            )
    shape = gemm_shape(tuple(a.shape), tuple(b.shape), names)
    m, n = _rows_columns(a, b)
    for name, extent, called in ((names[0], m, "m"), (names[1], n, "n")):
        if not 1 <= extent <= NARROW:
            raise ShapeError(
                argument=name,
                got=f"{called} = {extent}",
                wanted=f"{called} in 1..{NARROW}",
                fix="Use matmul, which takes products of any size.",
            )
    _check_added(request, shape)
    return shape


def product_operands(request: Request) -> tuple[Operand, Operand]:
    """Return A and B of a product."""
    return request.a, cast("Operand", request.b)


def _rows_columns(a: Operand, b: Operand) -> tuple[int, int]:
    return a.shape[-2] if len(a.shape) > 1 else 1, b.shape[-1] if len(b.shape) > 1 else 1


def _check_added(request: Request, shape: Shape) -> None:
    if request.c is not None:
        check_broadcast(request.c.shape, shape, "c")
    elif request.beta != 0:
        raise ArgumentError(
            argument="c",
            got=f"None with beta = {request.beta}",
            wanted="an array to add, where beta is not 0",
            fix="Pass c, or omit beta.",
        )


def _lower(request: Request, d: Operand) -> tuple[SubProblem[Any], ...]:
    a, b = product_operands(request)
    activation, _out_dtype, precision, batch_invariant, conjugates = request.options
    how: dict[str, Any] = {"skip_product": request.alpha == 0, "precision": precision}
    how["batch_invariant"] = batch_invariant
    if a.dtype.part is None:
        return lower_gemm(a, b, request.c, d, bias=request.bias, activation=activation, **how)
    return lower_complex(a, b, request.c, d, conjugates, complex_beta=isinstance(request.beta, complex), **how)


def checked_options(
    activation: str | None, out_dtype: object, precision: str | None, dtype: DType, *, batch_invariant: bool = False
) -> Options:
    """Return the options for a product of elements of ``dtype``, if any was passed.

    Raises the errors of :func:`matmill.matmul`.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise unknown_name("activation", str(activation), ACTIVATIONS)
    if activation is not None and dtype.is_integer:
        raise _only_of_floats("activation", repr(activation), dtype, "Apply it to the result.")
    if precision is not None and precision not in PRECISIONS:
        raise unknown_name("precision", str(precision), PRECISIONS)
    result = result_type(out_dtype, dtype)
    if activation is not None and dtype.part is not None:
        raise ArgumentError(
            argument="activation",
            got=f"{activation!r} with dtype {dtype.name}",
            wanted="real elements",
            fix="Omit activation=, and apply a function to the parts of the result.",
        )
    if precision == "tf32" or precision in SPLIT_METHODS:
        _check_tensor_cores(precision, dtype, result)
    # float32 and float64 are summed by FMA, and integers exactly in any order: nothing needs promotion.
    exact = dtype.wider is None or dtype.is_integer
    precise = "default" if precision is None or (precision == "high" and exact) else precision
    if not isinstance(batch_invariant, bool):
        raise ArgumentError(
            argument="batch_invariant", got=repr(batch_invariant), wanted="True or False", fix="Pass bool(value)."
        )
    ordered = batch_invariant and not dtype.is_integer
    return Options(activation, None if result is dtype else result, precise, ordered)


def _only_of_floats(argument: str, got: str, dtype: DType, fix: str) -> ArgumentError:
    got, wanted = f"{got} with elements of {dtype.name}", "None: integer products have none"
    return ArgumentError(argument=argument, got=got, wanted=wanted, fix=fix)


def _check_tensor_cores(precision: str, dtype: DType, result: DType) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` unless tensor cores can multiply elements of ``dtype`` so."""
    does = "rounds to tf32" if precision == "tf32" else "splits into pieces"
    if dtype not in {F32, C64}:
        got, wanted = f"dtype {dtype.name}", f"float32 elements (or complex64), which it {does}"
    elif result is not dtype and precision in SPLIT_METHODS:
        got, wanted = f"out_dtype {result.name}", "float32 sums; wider ones are exact without it"
    else:
        return
    raise ArgumentError(argument="precision", got=f"{precision!r} with {got}", wanted=wanted, fix="Omit precision=.")


def k_chunks(k: int, per_k: int) -> Iterator[slice]:
    """Yield slices of ``k`` terms, in order, of which a wider copy stays small at ``per_k`` bytes a term.

    >>> list(k_chunks(3, 16 * 2**20))
    [slice(0, 2, None), slice(2, 4, None)]
    """
    step = max(1, _WIDENED_BYTES // max(1, per_k))
    return (slice(start, start + step) for start in range(0, k, step))


def _compute(request: Request, shape: Shape) -> Array:
    """Return the product by NumPy's BLAS. Real Gram matrices are symmetric to the bit, as the GPU's are."""
    a, b = product_operands(request)
    taken = summed(a.dtype, request.result_type)
    c, scalar = request.c, taken.accumulator.numpy.type
    if request.alpha == 0 or 0 in shape:  # NumPy visits every batch of an empty result
        product = np.zeros(shape, scalar)
    else:
        left, right = _values(request, a, "a"), _values(request, b, "b")
        if request.options.batch_invariant:
            product = _by_rows(left, right, scalar, wide=taken.wider is not None)
        else:
            product = sums(left, right, taken)
        if len(a.shape) > 1 and a.dtype.part is None and mirrors(a, b) and not request.options.batch_invariant:
            _mirror(product)
        if request.alpha != 1:
            product *= scalar(request.alpha)
    if c is not None:
        product += scalar(request.beta) * _values(request, c, "c").astype(scalar, copy=False)
    if request.bias is not None:
        product += _bias(request.bias, a, b).astype(scalar)
    if request.options.activation is not None:
        activate(request.options.activation, product)
    # Sums that are wider than the result's elements are rounded here, once; others are not copied.
    return product.astype(request.result_type.numpy, copy=False)


def sums(a: Array, b: Array, dtype: DType) -> Array:
    """Return ``a @ b`` of elements of ``dtype`` by BLAS, in the type of their sums."""
    multiply = _integers if dtype.is_integer else _product
    return multiply(a, b, dtype.accumulator.numpy.type, wide=dtype.wider is not None)


def _values(request: Request, operand: Operand, name: str) -> Array:
    """Return an operand's values on the host: its elements, or their conjugates."""
    elements: Array = operand.owner
    return elements.conj() if name in request.options.conjugates else elements


def _integers(a: Array, b: Array, scalar: type[np.generic], *, wide: bool) -> Array:
    """Compute ``a @ b`` of integers, which wraps around; BLAS sums products of bytes exactly, in float64."""
    total = _widened(a, b, np.float64).astype(np.int64) if wide and a.itemsize == 1 else np.matmul(a, b)
    return np.asarray(total).astype(scalar)


def _product(a: Array, b: Array, scalar: type[np.generic], *, wide: bool) -> Array:
    """Compute ``a @ b`` by BLAS, in ``scalar``; ``wide`` says that the elements are narrower."""
    if not wide and _by_blas(a) and _by_blas(b):
        return np.asarray(np.matmul(a, b))
    total = _widened(a, b, scalar)
    return total if wide else np.asarray(total, scalar)


def _by_rows(a: Array, b: Array, scalar: type[np.generic], *, wide: bool) -> Array:
    """Compute as :func:`_product` does, row by row: the same call of BLAS for each, whatever others there are."""
    right = b if b.ndim > 1 else b[:, None]
    rows = a if a.ndim > 1 else a[None]
    batch = np.broadcast_shapes(rows.shape[:-2], right.shape[:-2])
    lefts, rights = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (rows, right))
    kind = np.promote_types(scalar, np.float64) if wide else np.dtype(scalar)
    total = np.empty((*batch, rows.shape[-2], right.shape[-1]), kind)
    for at in np.ndindex(batch):
        for row, to in zip(lefts[at], total[at], strict=True):
            to[:] = _product(np.ascontiguousarray(row), rights[at], scalar, wide=wide)
    total = total if b.ndim > 1 else total[..., 0]
    return total if a.ndim > 1 else total.reshape((*batch, *total.shape[len(batch) + 1 :]))


def _bias(bias: Operand, a: Operand, b: Operand) -> Array:
    """Return the bias in a shape that broadcasts to the result, which lacks an axis if a or b is a vector."""
    own: Array = bias.owner
    if len(a.shape) == len(b.shape) == 1:
        return own.reshape(())
    return own.reshape(-1) if 1 in {len(a.shape), len(b.shape)} else own


def _by_blas(x: Array) -> bool:
    """Tell whether NumPy passes a matrix or vector to BLAS, which sums in blocks.

    NumPy's own loop adds terms one by one, and loses digits where k is long.
    """
    size = x.itemsize
    if max(x.shape[-2:]) >= 2**31:  # BLAS has 32-bit extents
        return False
    if x.ndim == 1:
        return bool(x.strides[0] == size)
    (rows, columns), (row, column) = x.shape[-2:], x.strides[-2:]
    return bool((column == size and row >= columns * size) or (row == size and column >= rows * size))


def _widened(a: Array, b: Array, scalar: type[np.generic]) -> Array:
    """Compute ``a @ b`` in chunks of k, copied to packed arrays of ``scalar`` and summed in float64 or wider."""
    k = a.shape[-1]
    per_k = np.dtype(scalar).itemsize * ((a.size + b.size) // max(1, k))
    shape = np.matmul(a[..., :0], b[..., :0, :] if b.ndim > 1 else b[:0]).shape
    total = np.zeros(shape, np.promote_types(scalar, np.float64))
    # In longer chunks BLAS's float32 sums would lose digits: each of their SIMD lanes adds thousands of terms.
    for chunk in k_chunks(k, max(per_k, _WIDENED_BYTES // 2**14)):
        rows = b[..., chunk, :] if b.ndim > 1 else b[chunk]
        total += np.matmul(a[..., chunk].astype(scalar, order="C"), rows.astype(scalar, order="C"))
    return total


def _mirror(square: Array) -> None:
    """Copy the upper triangles of matrices to the lower ones.

    BLAS promises no order of summation: its blocks may differ for rows and columns, and then so do (i, j) and (j, i).
    """
    m = square.shape[-1]
    for start in range(0, m, _ROWS):
        stop = min(start + _ROWS, m)
        above = np.swapaxes(square[..., :stop, start:stop], -1, -2)
        np.copyto(square[..., start:stop, :stop], above, where=np.tri(stop - start, stop, start - 1, dtype=bool))


MATMUL = Operation("a", "b", "c", _shape, _lower, _compute, beta=0.0, streams=True)
INNER = Operation("e", "f", "c", _narrow_shape, _lower, _compute, beta=0.0, streams=True)
