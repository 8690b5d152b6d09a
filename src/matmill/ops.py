"""Matrix products on arrays of any library: the whole flow, from arguments to result."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np

from matmill import gpu, settings
from matmill.arrays import Operand, check_results, inspect, overlaps, resolve_stream, self_overlap
from matmill.errors import (
    AliasError,
    ArgumentError,
    DeviceError,
    DTypeError,
    ReadOnlyError,
    ShapeError,
    unknown_name,
)
from matmill.layout import check_broadcast, result_shape
from matmill.routes import Request, emulated, on_cpu, on_gpu, through_gpu


def matmul(
    a: Any,
    b: Any,
    /,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    stream: object = None,
    executor: str | None = None,
) -> Any:
    """``alpha * (a @ b) + beta * c`` for arrays of float32 or float64.

    Shapes follow the array API's ``matmul``: ``a`` (..., m, k), ``b`` (..., k, n), result (..., m, n) with batch
    dimensions broadcast; a one-dimensional ``a`` is a row and ``b`` a column whose dimension of 1 is dropped from the
    result. ``c`` broadcasts to the result's shape. Strides may be anything, zero and negative ones included, and every
    extent may be 0 (a product over k = 0 is zero).

    Arrays may be NumPy's, torch's, CuPy's, JAX's or any with DLPack or ``__cuda_array_interface__``, all of one dtype
    on one device. The result is a fresh array of the library of ``a`` on that device, or ``out``, which must have the
    result's shape and dtype and share no memory with the inputs; it may be exactly ``c``.

    As in BLAS, ``beta = 0`` means that ``c`` is not read, and ``alpha = 0`` that ``a`` and ``b`` are not: NaN there
    does not reach the result.

    ``executor`` is ``"auto"``, ``"gpu"``, ``"cpu"`` (NumPy's BLAS) or ``"emulator"`` (the GPU kernel's own PTX, run on
    the CPU). Arrays that lie on a GPU are multiplied there. For arrays on the host, None means the environment's
    ``MATMILL_EXECUTOR``, else ``"auto"``: a GPU for NumPy arrays where there is one, else the CPU.

    ``stream`` is the CUDA stream to work on, as a handle or a stream object, by default the array library's current
    one. On a GPU's own arrays nothing is copied and nothing waited for; host arrays are copied there and back.

    Raises :class:`~matmill.errors.ShapeError`, :class:`~matmill.errors.DTypeError`,
    :class:`~matmill.errors.DeviceError`, :class:`~matmill.errors.AliasError`, :class:`~matmill.errors.ReadOnlyError`,
    :class:`~matmill.errors.ArgumentError`, :class:`~matmill.errors.UnknownNameError` or
    :class:`~matmill.errors.NoGPUError` before anything is written.

    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> matmul(a, a.T, executor="cpu")
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
    """
    named = None if stream is None else resolve_stream(stream)
    x, y = inspect(a, "a", named), inspect(b, "b", named)
    z = None if c is None else inspect(c, "c", named)
    target = None if out is None else inspect(out, "out", named)
    alpha, beta = _scalar(alpha, "alpha"), _scalar(beta, "beta")
    _check_same(x, (("b", y), ("c", z), ("out", target)))
    shape = result_shape(x.shape, y.shape)
    if z is not None:
        check_broadcast(z.shape, shape, "c")
    elif beta != 0:
        raise ArgumentError(
            argument="c",
            got=f"None with beta = {beta}",
            wanted="an array to add, where beta is not 0",
            fix="Pass c, or leave beta out.",
        )
    used = None if beta == 0 else z
    if target is None:
        check_results(a, x)
    else:
        _check_out(target, shape, x, y, used)
    route = _route(executor, (x, y, z, target))
    request = Request(x, y, used, target, shape, alpha, beta, a, out)
    if route == "gpu":
        return on_gpu(request, named) if x.device[0] == "cuda" else through_gpu(request, named)
    return on_cpu(request) if route == "cpu" else emulated(request)


def _scalar(value: SupportsFloat, argument: str) -> float:
    if type(value) is float:
        return value
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


def _check_same(first: Operand, others: tuple[tuple[str, Operand | None], ...]) -> None:
    """One dtype and one device for all."""
    for name, operand in others:
        if operand is None:
            continue
        if operand.dtype is not first.dtype:
            raise DTypeError(
                argument=name,
                got=f"dtype {operand.dtype.name}",
                wanted=f"a's {first.dtype.name}",
                fix="Convert one of them: matmill does not mix element types.",
            )
        if operand.device != first.device:
            raise DeviceError(
                argument=name,
                got=f"an array on {_place(operand)}",
                wanted=f"one on {_place(first)}, where a is",
                fix="Copy one of them to the other's device.",
            )


def _place(operand: Operand) -> str:
    kind, index = operand.device
    return "the host" if kind == "cpu" else f"GPU {index}"


def _check_out(out: Operand, shape: tuple[int, ...], a: Operand, b: Operand, c: Operand | None) -> None:
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
    for name, operand in (("a", a), ("b", b), ("c", c)):
        if operand is None:
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


def _route(executor: str | None, operands: tuple[Operand | None, ...]) -> str:
    """Which of ``"gpu"``, ``"cpu"`` and ``"emulator"`` computes a product of these operands."""
    if executor is not None and executor not in settings.EXECUTORS:
        raise unknown_name("executor", str(executor), settings.EXECUTORS)
    first = operands[0]
    if first is not None and first.device[0] == "cuda":
        if executor in {"cpu", "emulator"}:
            raise DeviceError(
                argument="executor",
                got=f"{executor!r} with arrays on {_place(first)}",
                wanted="arrays on the host",
                fix="Copy the arrays to the host first, or leave executor out.",
            )
        return "gpu"
    name = settings.default_executor() if executor is None else executor
    if name == "auto":
        numpy_only = all(operand.library == "numpy" for operand in operands if operand is not None)
        return "gpu" if numpy_only and gpu.unavailable() is None else "cpu"
    if name == "gpu":
        reason = gpu.unavailable()
        if reason is not None:
            raise gpu.no_gpu("MATMILL_EXECUTOR" if executor is None else "executor", f"'gpu', but {reason}")
    return name
