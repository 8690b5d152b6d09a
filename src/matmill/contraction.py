"""einsum and tensordot of arrays of any library, as matrix products of strided views.

Two arrays are one product: letters of both are batches or terms, letters of one are rows or columns, and axes whose
strides are regular in all arrays are one. Only terms over axes that no single stride joins are copied.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from operator import index
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from matmill.arrays import Operand, inspect, resolve_stream
from matmill.arrays.operand import CPU, DeviceId, packed_strides
from matmill.dispatch.gemm import MATMUL, checked_options, product_operands
from matmill.dispatch.plan_cache import resolve
from matmill.dispatch.validate import NO_OPTIONS, Operation, Request, check_apart, check_same
from matmill.dtypes import ALL, DType
from matmill.errors import ArgumentError, ShapeError, missing_package
from matmill.lowering import Shape, SubProblem, lower_transpose
from matmill.lowering.einsum import Term, View, arrange, letter_axes, matrix_views, preparation
from matmill.ops import compute, result_owner
from matmill.problem import Geam, Gemm
from matmill.runtime.gpu import GPU
from matmill.settings import Executor


class _Factor(NamedTuple):
    """An array with a letter for each axis, and its name in messages."""

    name: str
    array: Any
    operand: Operand
    letters: str


class _Options(NamedTuple):
    out: Any
    out_dtype: object
    precision: str | None
    stream: int | None
    executor: str | None


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: Any = None,
    out_dtype: object = None,
    precision: str | None = None,
    stream: object = None,
    executor: Executor | None = None,
    optimize: Any = "auto",
) -> Any:
    """Return Einstein's sum: products of elements, summed over each letter that the result lacks.

    ``subscripts`` has a letter for each axis, commas between arrays, and after ``->`` the letters of the result:
    without them, those that occur once, sorted. ``...`` stands for axes that are broadcast, a letter twice in a term
    for a diagonal, and an extent of 1 broadcasts. NumPy's form ``einsum(a, [0, 1], b, [1, 2], [0, 2])`` is read too.

    Two arrays are multiplied by :func:`matmul`'s kernels, as views. What is copied first are terms over several axes
    that no single stride joins. Axes of one array alone are summed first, as a product with ones. Without a sum the
    result of one array is a view of it in NumPy, torch and CuPy. All other results are packed in the order of their
    letters, or have the strides of ``out``.

    More than two arrays are multiplied pair by pair, in the order that ``opt_einsum`` chooses by ``optimize``. It
    comes with ``matmill[einsum]``. Intermediates and sums that come first are rounded to the arrays' dtype.

    Arrays, ``out``, ``out_dtype``, ``precision``, ``stream``, ``executor`` and errors are as in :func:`matmul`.

    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((4, 3))
    >>> einsum("ik,jk->ij", a, b, executor="cpu")
    array([[ 3.,  3.,  3.,  3.],
           [12., 12., 12., 12.]])
    >>> einsum("ij->j", a, executor="cpu")
    array([3., 5., 7.])
    """
    text, arrays = (subscripts, operands) if isinstance(subscripts, str) else _interleaved(subscripts, *operands)
    options = _Options(out, out_dtype, precision, None if stream is None else resolve_stream(stream), executor)
    factors = [_factor(f"operands[{position}]", array, options) for position, array in enumerate(arrays)]
    terms, output = _parse(text, tuple(len(factor.operand.shape) for factor in factors))
    factors = _fitting(factors, terms)
    for where, letters in _path(factors, output, optimize):
        pair = [factors.pop(position) for position in sorted(where, reverse=True)][::-1]
        if factors:
            factors.append(_intermediate(pair, letters, options))
    return _contract(pair, output, options)


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    out: Any = None,
    out_dtype: object = None,
    precision: str | None = None,
    stream: object = None,
    executor: Executor | None = None,
) -> Any:
    """Return the sum of products over ``axes``: along the other axes of ``a``, then those of ``b``.

    ``axes`` is a number, of last axes of ``a`` and first axes of ``b``, or a pair of axes or of sequences of axes.
    Everything else is as in :func:`einsum`.

    >>> tensordot(np.ones((2, 3, 4)), np.ones((4, 3, 5)), ([1, 2], [1, 0]), executor="cpu").shape
    (2, 5)
    """
    options = _Options(out, out_dtype, precision, None if stream is None else resolve_stream(stream), executor)
    factors = [_factor("a", a, options), _factor("b", b, options)]
    ranks = [len(factor.operand.shape) for factor in factors]
    of_a, of_b = ([chr(first + axis) for axis in range(rank)] for first, rank in zip((192, 512), ranks, strict=True))
    for left, right in _summed_axes(axes, *ranks):
        of_b[right] = of_a[left]
    return _contract(_fitting(factors, ["".join(of_a), "".join(of_b)]), _once(of_a + of_b), options)


def _summed_axes(axes: Any, *ranks: int) -> list[tuple[int, int]]:
    """Return the pairs of axes that a tensordot sums over, counted from 0."""
    try:
        whole = (range(-index(axes), 0), range(axes)) if hasattr(axes, "__index__") and axes >= 0 else axes
        # A range has an axis only if the array has it.
        sides = [[range(rank)[axis] for axis in np.atleast_1d(side)] for rank, side in zip(ranks, whole, strict=True)]
        if all(len(set(side)) == len(side) for side in sides):
            return list(zip(*sides, strict=True))
    except (IndexError, TypeError, ValueError):
        pass
    raise ArgumentError(
        argument="axes",
        got=f"{axes!r} for arrays of {ranks[0]} and {ranks[1]} dimensions",
        wanted="a number of dimensions that both have, or two sequences of as many different axes",
        fix="Pass for example axes=1, or axes=([0, 1], [1, 0]).",
    )


def _interleaved(*arguments: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the subscripts and the arrays of NumPy's form with numbers for letters."""
    count, odd = divmod(len(arguments), 2)
    letters: dict[Any, str] = {**dict(enumerate(ascii_uppercase + ascii_lowercase)), ...: "..."}
    try:
        terms = ["".join(letters[axis] for axis in axes) for axes in (*arguments[1::2], *arguments[-1:] * odd)]
    except (KeyError, TypeError):
        got, wanted = type(arguments[0]).__name__, "a string, or arrays that alternate with lists of numbers up to 51"
        fix = "Pass for example 'ij,jk->ik' before the arrays."
        raise ArgumentError(argument="subscripts", got=got, wanted=wanted, fix=fix) from None
    return "->".join([",".join(terms[:count]), *terms[count:]]), arguments[: 2 * count : 2]


def _once(letters: Iterable[str]) -> str:
    return "".join(letter for letter, count in Counter(letters).items() if count == 1)


@lru_cache(maxsize=1024)
def _parse(subscripts: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:  # noqa: C901 — a refusal after the other
    """Return a letter for each axis of each array, and of the result; axes of an ellipsis get letters of their own."""

    def refusal(got: str, wanted: str, fix: str) -> ArgumentError:
        return ArgumentError(argument="subscripts", got=f"{got} in {subscripts!r}", wanted=wanted, fix=fix)

    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    for character in "".join((*terms, right)).replace("...", ""):
        if character not in ascii_letters:
            raise refusal(repr(character), "letters, commas, '...' and one '->'", "Remove it, or take a letter.")
    if len(terms) != len(ranks):
        raise refusal(f"terms for {len(terms)} arrays", f"{len(ranks)}, as arrays are passed", "Put commas between.")
    if any(term.count("...") > 1 for term in (*terms, right)):
        raise refusal("'...' twice in a term", "it once", "Give letters to the axes of one of the two.")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    for position, (term, count) in enumerate(zip(terms, hidden, strict=True)):
        if count < 0 or (count and "..." not in term):
            name, got, least = f"operands[{position}]", ranks[position], "at least " * ("..." in term)
            wanted = f"{least}{got - count}, one for each letter of {term!r}"
            fix = "Give each axis a letter, or write '...' for axes without one."
            raise ShapeError(argument=name, got=f"{got} dimensions", wanted=wanted, fix=fix)
    dots = "".join(chr(192 + axis) for axis in range(max(hidden)))
    whole = tuple(term.replace("...", dots[len(dots) - count :]) for term, count in zip(terms, hidden, strict=True))
    if not arrow:
        return whole, dots + "".join(sorted(set(_once(left)) & set(ascii_letters)))
    if dots and "..." not in right:
        raise refusal("a result without '...'", "it there too: no letter sums its axes", "Write '->...'.")
    for letter in right.replace("...", ""):
        if letter not in left:
            raise refusal(f"{letter!r} of no array", "letters of arrays in the result", "Omit it after '->'.")
        if right.count(letter) > 1:
            raise refusal(f"{letter!r} twice after '->'", "it once", "Omit one of the two: diagonals are only read.")
    return whole, right.replace("...", dots)


def _factor(name: str, array: Any, options: _Options, letters: str = "") -> _Factor:
    return _Factor(name, array, inspect(array, name, options.stream, ALL), letters)


def _fitting(factors: list[_Factor], terms: Iterable[str]) -> list[_Factor]:
    """Return factors with their letters, checked to have one type and device, and one extent for each letter."""
    first = factors[0].operand
    known: dict[str, tuple[int, str]] = {}
    for (name, _, x, _), letters in zip(factors, terms, strict=True):
        if x.dtype is not first.dtype or x.device != first.device:
            pair = replace(MATMUL, first=factors[0].name, second=name)
            check_same(Request(pair, first, x, None, None, 1.0, 0.0, None, x, None))
        for axis, (letter, extent) in enumerate(zip(letters, x.shape, strict=True)):
            before = letters.index(letter)
            wanted, where = known.get(letter, (extent, "")) if before == axis else (x.shape[before], f"axis {before}")
            if extent != wanted and (before != axis or extent != 1):
                got, fix = f"{extent} elements along axis {axis}", "Only an axis of 1 is broadcast, to another array's."
                raise ShapeError(argument=name, got=got, wanted=f"{wanted}, as along {where}", fix=fix)
            if extent != 1:
                known[letter] = extent, f"axis {axis} of {name}"
    return [factor._replace(letters=letters) for factor, letters in zip(factors, terms, strict=True)]


def _path(factors: list[_Factor], output: str, optimize: Any) -> Iterator[tuple[Iterable[int], str]]:
    """Yield the positions of the arrays to contract next, which leave the list, and the letters of their result."""
    if len(factors) < 3:
        yield range(len(factors)), output
        return
    try:
        opt_einsum = import_module("opt_einsum")
    except ModuleNotFoundError as error:
        raise missing_package(error, "einsum of more than two arrays", "opt_einsum>=3.4") from None
    text = ",".join(factor.letters for factor in factors) + "->" + output
    shapes = [tuple(factor.operand.shape) for factor in factors]
    _, info = opt_einsum.contract_path(text, *shapes, shapes=True, optimize=optimize)
    for where, _, step, *_ in info.contraction_list:
        if len(where) > 2:
            got, fix = f"{optimize!r}, by which {len(where)} arrays meet at once", "Omit it, or pass 'greedy'."
            raise ArgumentError(argument="optimize", got=got, wanted="a path of pairs", fix=fix)
        yield where, step.partition("->")[2]


def _contract(factors: list[_Factor], output: str, options: _Options, *, copy: bool = False) -> Any:
    """Return the contraction of one or two factors; with ``copy``, one without a sum is no view."""
    if len(factors) == 1:
        (factor,) = factors
        if letter_axes(*_term(factor)).keys() <= set(output) and options.out_dtype is None:
            view = None if copy or options.out is not None else arrange(output, _term(factor))
            return _run(_arrangement(factor.letters, output, factor.name), factors, options, view=view)
        x = factor.operand
        factors = [factor, _Factor("ones", None, _one(x.dtype, x.device)._replace(library=x.library), "")]
    first, swap = preparation(output, *map(_term, factors), rounded=factors[0].operand.dtype.wider is not None)
    for own, letters, copied in first:
        factors[own] = _intermediate(factors[own : own + 1], letters, options, copy=copied)
    if first:
        return _contract(factors, output, options)
    swap = swap and factors[0].operand.library == factors[1].operand.library
    a, b = factors[::-1] if swap else factors
    return _run(_product(a.letters, b.letters, output, (a.name, b.name)), factors, options, swap=swap)


def _intermediate(factors: list[_Factor], letters: str, options: _Options, *, copy: bool = False) -> _Factor:
    """Return a contraction as a factor of the next one. NumPy copies what is on the host."""
    name = factors[0].name if len(factors) == 1 else "an intermediate"
    executor = "cpu" if copy and factors[0].operand.device == CPU else options.executor
    array = _contract(factors, letters, options._replace(out=None, out_dtype=None, executor=executor), copy=copy)
    return _factor(name, array, options, letters)


def _run(
    operation: Operation, factors: list[_Factor], options: _Options, *, swap: bool = False, view: View | None = None
) -> Any:
    """Return the result of an operation on factors, or the ``view`` of the only one, if its library has views."""
    out, out_dtype, precision, stream, executor = options
    (array, x), (other, y) = ((factor.array, factor.operand) for factor in (factors[0], factors[-1]))
    like, home = result_owner(array, x, other, y)
    a, b = (y, x) if swap else (x, y if len(factors) > 1 else None)
    target = None if out is None else inspect(out, "out", stream, ALL)
    plain = out_dtype is None and precision is None
    chosen = NO_OPTIONS if plain else checked_options(None, out_dtype, precision, a.dtype)
    request = Request(operation, a, b, None, target, 1.0, 0.0, like, home, out, None, chosen)
    call = resolve(request, executor)
    if target is not None:
        check_apart(request)
    if view is not None and x.library == "torch":
        return array.as_strided(*view)
    if view is not None and x.library in {"numpy", "cupy"}:
        stride_tricks = sys.modules[x.library].lib.stride_tricks
        return stride_tricks.as_strided(array if x.library == "cupy" else x.owner, *_in_bytes(view, x.dtype))
    return compute(request, call, stream)


@lru_cache(maxsize=64)
def _one(dtype: DType, device: DeviceId) -> Operand:
    """Return an array without dimensions on a device that holds 1."""
    owner: Any = np.ones((), dtype.numpy)
    address = owner.ctypes.data
    if device != CPU:
        owner = GPU.get(device[1]).upload(owner, "ones")
        address = owner.address
    return Operand((), (), dtype, device, address, readonly=True, library="numpy", owner=owner)


def _term(factor: _Factor) -> Term:
    return factor.letters, factor.operand.shape, factor.operand.strides


def _in_bytes(view: View, dtype: DType) -> View:
    return view[0], tuple(stride * dtype.itemsize for stride in view[1])


def _viewed(x: Operand, view: View) -> Operand:
    owner = as_strided(x.owner, *_in_bytes(view, x.dtype)) if x.device == CPU else x.owner
    return x._replace(shape=view[0], strides=view[1], owner=owner)


@lru_cache(maxsize=1024)
def _product(a: str, b: str, output: str, names: tuple[str, str]) -> Operation:
    """Return the operation that multiplies two arrays with these letters."""

    def shape(request: Request) -> Shape:
        x, y = product_operands(request)
        axes = letter_axes(a, *x[:2]) | letter_axes(b, *y[:2])
        return tuple(axes.get(letter, (1, 0))[0] for letter in output)

    def matrices(request: Request, d: Operand) -> tuple[Request, View]:
        x, y = product_operands(request)
        of_x, of_y, of_d = matrix_views((a, *x[:2]), (b, *y[:2]), (output, *d[:2]))
        return request._replace(a=_viewed(x, of_x), b=_viewed(y, of_y)), of_d

    def lower(request: Request, d: Operand) -> tuple[SubProblem[Gemm], ...]:
        product, (extents, strides) = matrices(request, d)
        return MATMUL.lower(product, d._replace(shape=extents, strides=strides))

    def on_host(request: Request, shape: Shape) -> Any:
        product, view = matrices(request, request.a._replace(shape=shape, strides=packed_strides(shape)))
        x, y = product_operands(product)
        if product_operands(request)[1].owner is _one(y.dtype, CPU).owner:
            # BLAS takes no stride of 0.
            elements = np.sum(x.owner, -1, np.float64, keepdims=True).astype(request.result_type.numpy)
        else:
            elements = MATMUL.compute(product, view[0])
        result = np.empty(shape, request.result_type.numpy)
        target = as_strided(result, *_in_bytes(view, request.result_type))
        if target.flags.c_contiguous:
            return elements.reshape(shape)
        target[...] = elements
        return result

    return Operation(*names, "c", shape, lower, on_host, beta=0.0)


@lru_cache(maxsize=1024)
def _arrangement(letters: str, output: str, name: str) -> Operation:
    """Return the operation that copies an array with its axes in the order of ``output``."""

    def shape(request: Request) -> Shape:
        return arrange(output, (letters, *request.a[:2]))[0]

    def lower(request: Request, d: Operand) -> tuple[SubProblem[Geam], ...]:
        (*outer, rows, columns), (*steps, row, column) = (
            (1, 1, *sizes) for sizes in arrange(output, (letters, *request.a[:2]))
        )
        x = request.a._replace(shape=(*outer, columns, rows), strides=(*steps, column, row))
        return lower_transpose(x, None, d._replace(shape=(1, 1, *d.shape), strides=(1, 1, *d.strides)), alpha=1.0)

    def on_host(request: Request, _shape: Shape) -> Any:
        return _viewed(request.a, arrange(output, (letters, *request.a[:2]))).owner.copy()

    return Operation(name, "", "", shape, lower, on_host, beta=0.0)
