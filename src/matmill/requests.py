"""What is asked of a product, checked: operands that fit together, and the way the product will take.

All that follows from types, shapes, strides, devices and alignments alone is a :class:`Verdict`, and remembered for
arrays that lie on a GPU: the second product of a kind passes no check twice. What follows from addresses is checked
every time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

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
from matmill.layout import NARROW, check_broadcast, result_shape
from matmill.plan import Plan

#: Verdicts remembered, each with its plans.
_MOST_VERDICTS = 1024


@dataclass(frozen=True, eq=False)  # two objects, compared by identity, which is quick in keys
class Operation:
    """A public product: the names of its operands, and whether it takes one narrow product alone."""

    first: str
    second: str
    narrow: bool = False


MATMUL = Operation("a", "b")
INNER = Operation("e", "f", narrow=True)


class Request(NamedTuple):
    """What a call was given: ``like`` is its first array, ``array`` that of ``out``.

    Routes get requests without the ``c`` that is not read, where beta is 0.
    """

    a: Operand
    b: Operand
    c: Operand | None
    out: Operand | None
    alpha: float
    beta: float
    like: Any
    array: Any


@dataclass(slots=True)
class Verdict:
    """What was found out of operands that fit together: the result's shape and the route that it takes.

    ``plain`` means arrays of one library with streams of its own, on a GPU, and no stream named: nothing needs to wait
    or to be held. ``plans`` has the plans of such products by the result's address modulo 16.
    """

    shape: tuple[int, ...]
    route: str
    plain: bool
    plans: dict[int, Plan] = field(default_factory=dict)


_verdicts: dict[tuple[object, ...], Verdict] = {}


def judge(operation: Operation, request: Request, executor: str | None, stream: int | None) -> Verdict:
    """Whether a request can be computed, and how. Raises what ``matmul`` says it raises."""
    a, b, c, out, alpha, beta, like, _array = request
    key: tuple[object, ...] | None = None
    if stream is None and a.library in ALLOCATE and a.device[0] == "cuda":
        key = (
            operation,
            executor,
            a[:4],
            a.library,
            b[:4],
            b.library,
            a.address & 15,
            b.address & 15,
            a.address == b.address,
            None if c is None else (c[:4], c.library),
            None if out is None else (out[:4], out.library),
            alpha == 0,
            beta == 0,
        )
        known = _verdicts.get(key)
        if known is not None:
            return known
    check_same(operation, request)
    shape = _shape(operation, a, b)
    if c is not None:
        check_broadcast(c.shape, shape, "c")
    elif beta != 0:
        raise ArgumentError(
            argument="c",
            got=f"None with beta = {beta}",
            wanted="an array to add, where beta is not 0",
            fix="Pass c, or leave beta out.",
        )
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


def check_same(operation: Operation, request: Request) -> None:
    """One dtype and one device for all."""
    first = request.a
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


def check_apart(operation: Operation, request: Request) -> None:
    """``out`` shares no memory with the inputs; it may be exactly ``c``."""
    out = request.out
    for name, operand in ((operation.first, request.a), (operation.second, request.b), ("c", request.c)):
        if operand is None or out is None:
            continue
        if name == "c" and (operand.address, operand.shape, operand.strides) == (out.address, out.shape, out.strides):
            continue  # each element of c is read by the thread that then writes it
        shared = overlaps(out, operand)
        if shared is not False:
            raise AliasError(
                argument="out",
                got=f"memory that {'overlaps' if shared else 'interleaves in ways too many to check with'} {name}",
                wanted="memory apart from the inputs" + (", or exactly c" if name == "c" else ""),
                fix="Allocate a fresh array, or leave out= away.",
            )


def _shape(operation: Operation, a: Operand, b: Operand) -> tuple[int, ...]:
    """The result's shape, where the operands have shapes that this operation and this element type allow."""
    names = (operation.first, operation.second)
    if operation.narrow:
        for name, operand, extents in (*zip(names, (a, b), ("m, k", "k, n"), strict=True),):
            if len(operand.shape) != 2:
                raise ShapeError(
                    argument=name,
                    got=f"shape {tuple(operand.shape)}",
                    wanted=f"two dimensions ({extents})",
                    fix="Use matmul for vectors and batches, or reshape it.",
                )
    shape = result_shape(tuple(a.shape), tuple(b.shape), names)
    m = a.shape[-2] if len(a.shape) > 1 else 1
    n = b.shape[-1] if len(b.shape) > 1 else 1
    if operation.narrow:
        for name, extent, called in ((names[0], m, "m"), (names[1], n, "n")):
            if not 1 <= extent <= NARROW:
                raise ShapeError(
                    argument=name,
                    got=f"{called} = {extent}",
                    wanted=f"{called} in 1..{NARROW}",
                    fix="Use matmul, which takes products of any size.",
                )
    elif a.dtype.wider and max(m, n) > NARROW:
        raise DTypeError(
            argument=f"{names[0]}, {names[1]}",
            got=f"{a.dtype.name} of shapes {tuple(a.shape)} and {tuple(b.shape)}",
            wanted=f"float32 or float64, or products of at most {NARROW} rows and {NARROW} columns in {a.dtype.name}",
            fix="Convert both to float32, or split the product.",
        )
    return shape


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
    """Which of ``"gpu"``, ``"cpu"`` and ``"emulator"`` computes a product of these operands."""
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
