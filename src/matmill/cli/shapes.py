"""Shapes on the command line: operands without memory, and the problems of their product."""

from __future__ import annotations

import argparse
import math
import re

from matmill.arrays import Operand
from matmill.arrays.operand import CPU, packed_strides
from matmill.cli.options import size
from matmill.dispatch.validate import Options
from matmill.dtypes import DType
from matmill.errors import ArgumentError
from matmill.lowering import SubProblem, gemm_shape, lower_gemm
from matmill.problem import Gemm

_SHAPE = re.compile(r"[0-9.e+]+(?:x[0-9.e+]+)*T?")
#: Distance between the made-up addresses of operands, which are aligned as allocations are.
_APART = 2**44
#: No machine's memory, nor its disk, has more elements.
_MOST_ELEMENTS = 2**48


def operand(text: str, dtype: DType, index: int) -> Operand:
    """Return an operand of a shape, at the made-up address of number ``index``; a T at the end transposes the view.

    Raises :class:`~matmill.errors.ArgumentError`.

    >>> from matmill.dtypes import F32
    >>> operand("2x3x5e7T", F32, 1).strides
    (150000000, 1, 3)
    """
    if not _SHAPE.fullmatch(text):
        raise _no_shape(text)
    try:
        shape = tuple(size(part) for part in text.removesuffix("T").split("x"))
    except argparse.ArgumentTypeError:
        raise _no_shape(text) from None
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ArgumentError(
            argument="SHAPE", got=repr(text), wanted="at most 2**48 elements", fix="Take smaller extents."
        )
    if not text.endswith("T"):
        return packed(shape, dtype, index)
    if len(shape) < 2:
        raise _no_shape(text)
    return transposed(packed(_swapped(shape), dtype, index))


def factors(first: str, second: str, dtype: DType) -> tuple[Operand, Operand]:
    """Return the operands of a product by their shapes.

    Raises :class:`~matmill.errors.ArgumentError` where the shape before a T is the stored one and not the view's.

    >>> from matmill.dtypes import F32
    >>> factors("8192x768", "50257x768T", F32)
    Traceback (most recent call last):
    matmill.errors.ArgumentError: SHAPE: got '50257x768T', a view of 50257 x 768; wanted the shape of the view before \
the T. Did you mean 768x50257T? That is the transpose of a stored 50257x768.
    """
    a, b = operand(first, dtype, 1), operand(second, dtype, 2)
    if min(len(a.shape), len(b.shape)) > 1 and a.shape[-1] != b.shape[-2]:
        fits = {first: a.shape[-2] == b.shape[-2], second: a.shape[-1] == b.shape[-1]}
        for text in (text for text, fitting in fits.items() if fitting and text.endswith("T")):
            stored = text.removesuffix("T")
            *batch, rows, columns = stored.split("x")
            raise ArgumentError(
                argument="SHAPE",
                got=f"{text!r}, a view of {stored.replace('x', ' x ')}",
                wanted="the shape of the view before the T",
                fix=f"Did you mean {'x'.join([*batch, columns, rows])}T? That is the transpose of a stored {stored}.",
            )
    return a, b


def packed(shape: tuple[int, ...], dtype: DType, index: int) -> Operand:
    """Return an operand stored row by row, at the made-up address of number ``index``."""
    address = index * _APART
    return Operand(shape, packed_strides(shape), dtype, CPU, address, readonly=False, library="numpy", owner=None)


def transposed(x: Operand) -> Operand:
    """Return the view with the last two dimensions exchanged."""
    return x._replace(shape=_swapped(x.shape), strides=_swapped(x.strides))


def product_stages(a: Operand, b: Operand, options: Options) -> tuple[SubProblem[Gemm], ...]:
    """Return the problems of ``a @ b``, as a call with a new result has them.

    Raises :class:`~matmill.errors.ShapeError` for shapes that do not fit together.
    """
    d = packed(gemm_shape(a.shape, b.shape), options.out_dtype or a.dtype, 4)
    return lower_gemm(a, b, None, d, precision=options.precision, batch_invariant=options.batch_invariant)


def _no_shape(text: str) -> ArgumentError:
    return ArgumentError(
        argument="SHAPE",
        got=repr(text),
        wanted="extents with x between, for instance 4096x4096 or 3x5e7T",
        fix="A T at the end means a transposed view and takes two dimensions at least.",
    )


def _swapped(extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*extents[:-2], extents[-1], extents[-2])
