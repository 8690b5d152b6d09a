"""Requests and their checks: operands that fit together, an output that can be written, a backend that can be used.

:func:`validate` checks types, shapes, strides and devices, :func:`check_apart` checks addresses. Both raise the errors
of the public functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from matmill import settings
from matmill.arrays import Operand, check_results, overlaps, self_overlap
from matmill.dtypes import DType, widest
from matmill.errors import (
    OMIT_OUT,
    AliasError,
    ArgumentError,
    DeviceError,
    DTypeError,
    OutOfMemoryError,
    ReadOnlyError,
    ShapeError,
    by_copy,
    size,
    unknown_name,
)
from matmill.lowering import Shape, SubProblem
from matmill.runtime import gpu


class Options(NamedTuple):
    """The summation and rounding of a product, with the defaults of :class:`~matmill.problem.Gemm`.

    ``out_dtype`` is None if the result has the operands' type. ``batch_invariant`` says that a row's bits depend on no
    other row. ``conjugates`` names those among ``a``, ``b`` and ``c`` whose conjugates are meant.
    """

    activation: str | None = None
    out_dtype: DType | None = None
    precision: str = "default"
    batch_invariant: bool = False
    conjugates: str = ""


#: The options of operations that are not products, and of calls that pass none.
NO_OPTIONS = Options()


class Request(NamedTuple):
    """The arguments of a call.

    ``like`` is its first array, ``home`` that array's operand and ``array`` the one passed as ``out``.

    The result belongs to the library of ``home``. ``b`` and ``c`` are None for an operation that has none or does not
    read it; where beta is 0, backends get requests without the operand that it scales.
    """

    operation: Operation
    a: Operand
    b: Operand | None
    c: Operand | None
    out: Operand | None
    alpha: complex
    beta: complex
    like: Any
    home: Operand
    array: Any
    bias: Operand | None = None
    options: Options = NO_OPTIONS

    @property
    def result_type(self) -> DType:
        """The element type of ``c``, ``out`` and the result."""
        return self.options.out_dtype or self.a.dtype


@dataclass(frozen=True, eq=False)  # a few objects, compared by identity, which is quick in keys
class Operation:
    """A public operation: the names of its operands, and its own steps from a request to a result.

    ``added`` names the operand that beta scales, which may be exactly ``out``. ``shape`` checks the operands' shapes
    and types and returns the result's shape. ``lower`` returns the problems to solve for a result D, which depend on
    whether scalars are 0 or 1. ``compute`` returns the result on the host, which may be ``out`` itself. ``beta`` is its
    default. ``streams`` says that long narrow requests go through a GPU in chunks. ``third`` is the name of what a
    request has as ``bias``; under another name that has a type of its own.
    """

    first: str
    second: str
    added: str
    shape: Callable[[Request], Shape]
    lower: Callable[[Request, Operand], tuple[SubProblem[Any], ...]]
    compute: Callable[[Request, Shape], NDArray[Any]]
    beta: float
    streams: bool = False
    third: str = "bias"


def validate(request: Request) -> Shape:
    """Check that operands fit together and that the result can be written, and return the result's shape."""
    check_same(request)
    shape = request.operation.shape(request)
    if request.out is None:
        check_results(request.like, request.a)
        # Extents of 0 are ignored: no library allows the other extents to exceed the address space.
        if _nbytes(request, tuple(filter(None, shape))) >= _MOST_BYTES:
            raise out_of_memory(request, shape, "an array that 64-bit addresses can hold")
    else:
        _check_out(request.out, shape)
    return shape


#: The libraries count bytes in signed 64-bit integers.
_MOST_BYTES = 2**63


def _nbytes(request: Request, shape: Shape) -> int:
    return math.prod(shape) * request.result_type.itemsize


def out_of_memory(request: Request, shape: Shape, wanted: str) -> OutOfMemoryError:
    """Return the error for a result that is too large, or cannot be computed in the memory there is."""
    operation = request.operation
    return OutOfMemoryError(
        argument=operation.first if request.b is None else f"{operation.first}, {operation.second}",
        got=f"a {request.result_type.name} result of shape {tuple(shape)}, {size(_nbytes(request, shape))}",
        wanted=wanted,
        fix="Compute it in parts: slices of rows, of columns or of batches.",
    )


def complex_scalar(value: Any, argument: str, dtype: DType) -> complex:
    """Return ``value`` as the scalar of a product of elements of ``dtype``, a float where its imaginary part is 0.

    Raises :class:`~matmill.errors.ArgumentError` unless it is a number, and a real one for real elements.
    """
    if dtype.part is None or not isinstance(value, complex | np.complexfloating):
        return scalar(value, argument, "a real number" if dtype.part is None else "a number")
    number = complex(value)
    return number if number.imag else number.real


def scalar(value: SupportsFloat, argument: str, wanted: str = "a real number") -> float:
    """Return ``value`` as a Python float. Raises :class:`~matmill.errors.ArgumentError` unless it is a real number."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            shown = "an int beyond the range of float64"
    else:
        shown = f"{type(value).__name__} {value!r}"
    fix = "Pass a Python float, for example 1.0."
    with suppress(ArithmeticError, RuntimeError, TypeError, ValueError):
        float(value)
        fix = f"Pass a Python float: float({argument})."
    raise ArgumentError(
        argument=argument,
        got=shown,
        wanted=wanted,
        fix=fix,
    )


def check_callable(value: object, argument: str) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` unless ``value`` is None or callable."""
    if value is not None and not callable(value):
        raise ArgumentError(
            argument=argument,
            got=f"{type(value).__name__} {value!r}",
            wanted="a function of two ints, or None",
            fix=f"Pass the function itself, for example {argument}=print.",
        )


def check_same(request: Request) -> None:
    """Check that all operands are on one device and of one dtype; C and the result may have another one."""
    operation, first, result = request.operation, request.a, request.result_type
    for name, operand, dtype in (
        (operation.second, request.b, first.dtype),
        ("c", request.c, result),
        (operation.third, request.bias, first.dtype if operation.third == "bias" else None),
        ("out", request.out, result),
    ):
        if operand is None:
            continue
        if dtype is not None and operand.dtype is not dtype:
            raise DTypeError(
                argument=name,
                got=f"dtype {operand.dtype.name}",
                wanted=f"{operation.first}'s {dtype.name}" if dtype is first.dtype else f"out_dtype's {dtype.name}",
                fix=_fix_of_type(request, name, operand.dtype),
            )
        if operand.device != first.device:
            raise DeviceError(
                argument=name,
                got=f"an array on {_device_name(operand)}",
                wanted=f"one on {_device_name(first)}, where {operation.first} is",
                fix=by_copy(name, "Copy one of them to the other's device."),
            )


def _fix_of_type(request: Request, name: str, dtype: DType) -> str:
    """Return the advice for an operand of another type: ``out_dtype`` for a wider C or result."""
    mixed = by_copy(name, "Convert one of them: matmill does not mix element types.")
    products = request.operation.streams and request.options.out_dtype is None
    if products and name in {"c", "out"} and dtype is widest(request.a.dtype):
        return f"Pass out_dtype={dtype.name!r}, the type of C and the result. Or {mixed[0].lower()}{mixed[1:]}"
    return mixed


def check_apart(request: Request) -> None:
    """Check that ``out`` shares no memory with the inputs, except exactly with the one that beta scales."""
    operation, out, added = request.operation, request.out, request.operation.added
    names = operation.first, operation.second, "c", operation.third
    inputs = zip(names, (request.a, request.b, request.c, request.bias), strict=True)
    for name, operand in inputs:
        if operand is None or out is None:
            continue
        if name == added and operand.address == out.address and operand[:2] == out[:2]:  # shape and strides
            continue  # each element is read by the thread that then writes it
        shared = overlaps(out, operand)
        if shared is not False:
            raise AliasError(
                argument="out",
                got=f"memory that {'overlaps' if shared else 'interleaves in ways too many to check with'} {name}",
                wanted="memory apart from the inputs" + (f", or exactly {name}" if name == added else ""),
                fix="Allocate a fresh array, or omit out=.",
            )


def _check_out(out: Operand, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ShapeError(
            argument="out",
            got=f"shape {tuple(out.shape)}",
            wanted=f"exactly the result's {tuple(shape)}",
            fix="Allocate it with that shape, or omit out=.",
        )
    if out.readonly:
        raise ReadOnlyError(
            argument="out",
            got="an immutable JAX array" if out.library == "jax" else "a read-only array",
            wanted="an array that may be written",
            fix=OMIT_OUT,
        )
    if self_overlap(out):
        raise AliasError(
            argument="out",
            got=f"strides {tuple(out.strides)} over shape {tuple(out.shape)}, by which elements may coincide",
            wanted="an output whose elements do not share memory",
            fix="Allocate a fresh array, or omit out=.",
        )


def _device_name(operand: Operand) -> str:
    kind, index = operand.device
    return {"cpu": "the host", "cuda": f"GPU {index}"}.get(kind, f"device {kind}")


def choose_backend(executor: str | None, request: Request) -> str:
    """Return which of ``"gpu"``, ``"cpu"`` and ``"emulator"`` computes a result of these operands."""
    if executor is not None and executor not in settings.EXECUTORS:
        raise unknown_name("executor", str(executor), settings.EXECUTORS)
    if request.a.device[0] == "cuda":
        if executor in {"cpu", "emulator"}:
            raise DeviceError(
                argument="executor",
                got=f"{executor!r} with arrays on {_device_name(request.a)}",
                wanted="arrays on the host",
                fix="Copy the arrays to the host first, or leave executor out.",
            )
        return "gpu"
    name = settings.default_executor() if executor is None else executor
    if name == "auto":
        numpy_only = all(
            x is None or x.library == "numpy" for x in (request.a, request.b, request.c, request.bias, request.out)
        )
        return "gpu" if numpy_only and gpu.unavailable() is None else "cpu"
    if name == "gpu":
        reason = gpu.unavailable()
        if reason is not None:
            raise gpu.no_gpu("MATMILL_EXECUTOR" if executor is None else "executor", f"'gpu', but {reason}")
    return name
