"""What is asked of an operation, checked: operands that fit together, and the way that their result will take.

All that follows from types, shapes, strides, devices and alignments alone is a :class:`Verdict`, and remembered for
arrays that lie on a GPU: the second request of a kind passes no check twice. What follows from addresses is checked
every time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from matmill import gpu, settings
from matmill.arrays import ALLOCATE, Operand, check_results, overlaps, self_overlap
from matmill.errors import (
    AliasError,
    ArgumentError,
    DeviceError,
    DTypeError,
    ReadOnlyError,
    ShapeError,
    unknown_name,
)
from matmill.lowering import Shape, Stage
from matmill.plan import Plan

#: Verdicts remembered, each with its plans.
_MOST_VERDICTS = 1024


class Request(NamedTuple):
    """What a call was given: ``like`` is its first array, ``home`` that one's operand, ``array`` that of ``out``.

    Results go to the library of ``home``. ``b`` and ``c`` are None where an operation has none or does not read it;
    routes get requests without the operand that is not read, where beta is 0.
    """

    operation: Operation
    a: Operand
    b: Operand | None
    c: Operand | None
    out: Operand | None
    alpha: float
    beta: float
    like: Any
    home: Operand
    array: Any


@dataclass(frozen=True, eq=False)  # a few objects, compared by identity, which is quick in keys
class Operation:
    """A public operation: the names of its operands, and what is its own on the way from a request to a result.

    ``added`` names the operand that beta scales, which may be exactly ``out``. ``shape`` is the result's, where the
    operands have shapes and types that fit. ``variant`` is all of a request but layouts that its stages depend on, and
    ``lower`` gives those for a result D. ``compute`` is the answer on the host, which may be ``out`` itself, written.
    ``beta`` is the one of calls without it. ``streams`` says that long narrow requests go through a GPU in pieces.
    """

    first: str
    second: str
    added: str
    shape: Callable[[Request], Shape]
    variant: Callable[[Request], Hashable]
    lower: Callable[[Request, Operand], tuple[Stage[Any], ...]]
    compute: Callable[[Request, Shape], NDArray[Any]]
    beta: float
    streams: bool = False


@dataclass(slots=True)
class Verdict:
    """What was found out of operands that fit together: the result's shape and the route that it takes.

    ``plain`` means arrays of one library with streams of its own, on a GPU, and no stream named: nothing needs to wait
    or to be held. ``plans`` has the plans of such requests by the result's address modulo 16.
    """

    shape: Shape
    route: str
    plain: bool
    plans: dict[int, Plan] = field(default_factory=dict)


_verdicts: dict[tuple[object, ...], Verdict] = {}


def judge(request: Request, executor: str | None, stream: int | None) -> Verdict:
    """Whether a request can be computed, and how. Raises what the public functions say they raise."""
    operation, a, b, c, out, alpha, beta, like, _home, _array = request
    key: tuple[object, ...] | None = None
    if stream is None and a.library in ALLOCATE and a.device[0] == "cuda":
        key = (
            operation,
            executor,
            a[:4],
            a.library,
            a.address & 15,
            None if b is None else (b[:4], b.library, b.address & 15, a.address == b.address),
            None if c is None else (c[:4], c.library),
            None if out is None else (out[:4], out.library),
            alpha == 0,
            alpha == 1,
            beta == 0,
            beta == 1,
        )
        known = _verdicts.get(key)
        if known is not None:
            return known
    check_same(request)
    shape = operation.shape(request)
    if out is None:
        check_results(like, a)
    else:
        _check_out(out, shape)
    plain = key is not None and all(x is None or x.library == a.library for x in (b, c, out))
    verdict = Verdict(shape, _route(executor, request), plain)
    if key is not None and plain:
        if len(_verdicts) >= _MOST_VERDICTS:
            _verdicts.clear()
        _verdicts[key] = verdict
    return verdict


def scalar(value: SupportsFloat, argument: str) -> float:
    """``value`` as a Python float. Raises :class:`~matmill.errors.ArgumentError` for what is no real number."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            shown = "an int beyond the range of float64"
    else:
        shown = f"{type(value).__name__} {value!r}"
    raise ArgumentError(
        argument=argument,
        got=shown,
        wanted="a real number",
        fix=f"Pass a Python float, for example float({argument}).",
    )


def check_callable(value: object, argument: str) -> None:
    """Raises :class:`~matmill.errors.ArgumentError` for what is neither None nor to be called."""
    if value is not None and not callable(value):
        raise ArgumentError(
            argument=argument,
            got=f"{type(value).__name__} {value!r}",
            wanted="a function of two ints, or None",
            fix=f"Pass the function itself, for example {argument}=print.",
        )


def check_same(request: Request) -> None:
    """One dtype and one device for all."""
    operation, first = request.operation, request.a
    for name, operand in ((operation.second, request.b), ("c", request.c), ("out", request.out)):
        if operand is None:
            continue
        if operand.dtype is not first.dtype:
            raise DTypeError(
                argument=name,
                got=f"dtype {operand.dtype.name}",
                wanted=f"{operation.first}'s {first.dtype.name}",
                fix="Convert one of them: matmill does not mix element types.",
            )
        if operand.device != first.device:
            raise DeviceError(
                argument=name,
                got=f"an array on {_place(operand)}",
                wanted=f"one on {_place(first)}, where {operation.first} is",
                fix="Copy one of them to the other's device.",
            )


def check_apart(request: Request) -> None:
    """``out`` shares no memory with the inputs; it may be exactly the one that beta scales."""
    operation, a, b, c, out, *_others = request
    added = operation.added
    for name, operand in ((operation.first, a), (operation.second, b), ("c", c)):
        if operand is None or out is None:
            continue
        if name == added and (operand.address, operand.shape, operand.strides) == (out.address, out.shape, out.strides):
            continue  # each of its elements is read by the thread that then writes it
        shared = overlaps(out, operand)
        if shared is not False:
            raise AliasError(
                argument="out",
                got=f"memory that {'overlaps' if shared else 'interleaves in ways too many to check with'} {name}",
                wanted="memory apart from the inputs" + (f", or exactly {name}" if name == added else ""),
                fix="Allocate a fresh array, or leave out= away.",
            )


def _check_out(out: Operand, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ShapeError(
            argument="out",
            got=f"shape {tuple(out.shape)}",
            wanted=f"exactly the result's {tuple(shape)}",
            fix="Allocate it with that shape, or leave out= away.",
        )
    if out.readonly:
        raise ReadOnlyError(
            argument="out",
            got="an immutable JAX array" if out.library == "jax" else "a read-only array",
            wanted="an array that may be written",
            fix="Leave out= away and use the array that is returned.",
        )
    if self_overlap(out):
        raise AliasError(
            argument="out",
            got=f"strides {tuple(out.strides)} over shape {tuple(out.shape)}, by which elements may coincide",
            wanted="an output whose elements lie apart",
            fix="Allocate a fresh array, or leave out= away.",
        )


def _place(operand: Operand) -> str:
    kind, index = operand.device
    return "the host" if kind == "cpu" else f"GPU {index}"


def _route(executor: str | None, request: Request) -> str:
    """Which of ``"gpu"``, ``"cpu"`` and ``"emulator"`` computes a result of these operands."""
    if executor is not None and executor not in settings.EXECUTORS:
        raise unknown_name("executor", str(executor), settings.EXECUTORS)
    if request.a.device[0] == "cuda":
        if executor in {"cpu", "emulator"}:
            raise DeviceError(
                argument="executor",
                got=f"{executor!r} with arrays on {_place(request.a)}",
                wanted="arrays on the host",
                fix="Copy the arrays to the host first, or leave executor out.",
            )
        return "gpu"
    name = settings.default_executor() if executor is None else executor
    if name == "auto":
        numpy_only = all(x is None or x.library == "numpy" for x in (request.a, request.b, request.c, request.out))
        return "gpu" if numpy_only and gpu.unavailable() is None else "cpu"
    if name == "gpu":
        reason = gpu.unavailable()
        if reason is not None:
            raise gpu.no_gpu("MATMILL_EXECUTOR" if executor is None else "executor", f"'gpu', but {reason}")
    return name
