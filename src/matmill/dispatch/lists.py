"""Products of lists of matrices: one launch for all of them, or one product after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from matmill import arch as arches
from matmill import settings
from matmill.arrays import ALLOCATE, Operand, current_stream, from_host, inspect, resolve_stream
from matmill.arrays.operand import CPU
from matmill.dispatch import fast_path
from matmill.dispatch.backends import emulator_fault
from matmill.dispatch.groups import ELEMENTS, Row, list_launches
from matmill.dispatch.transpose import factor
from matmill.dtypes import PRODUCTS, DType
from matmill.errors import ArgumentError, IllegalConfigError, MatmillError, ShapeError
from matmill.jit.compile import compile_ptx, compile_source
from matmill.runtime.gpu import GPU

T = TypeVar("T")
#: A, B and C, as arrays and as operands; C is None where none is added.
_Arrays = tuple[Any, Any, Any]
_Operands = tuple[Operand, Operand, Operand | None]


def matmul_lists(
    matmul: Callable[..., Any], a: Sequence[Any], b: Any, c: Any, *, options: Mapping[str, Any], **named: Any
) -> list[Any]:
    """Return the products of each pair of ``a`` and ``b``, plus ``beta`` times that of ``c``.

    ``named`` has ``alpha``, ``beta``, ``stream`` and ``executor`` of a call of ``matmul``, the function for one
    product, and ``options`` the other arguments that it names. Raises what that function raises, with the number of the
    product.
    """
    _check_lists(a, b, c, options)
    addends = [None] * len(a) if c is None else c
    groups = list(zip(a, b, addends, strict=True))
    result = None if options else _at_once(groups, **named)
    return _each(lambda x, y, z: matmul(x, y, c=z, **named, **options), groups) if result is None else result


def _each(of_product: Callable[[Any, Any, Any], T], groups: Sequence[tuple[Any, Any, Any]]) -> list[T]:
    """Call a function for each product of the lists; errors say which one it is."""
    results = []
    for number, group in enumerate(groups):
        try:
            results.append(of_product(*group))
        except MatmillError as error:
            error.add_note(f"This is product {number} of the lists.")
            raise
    return results


def _check_lists(a: Sequence[Any], b: Any, c: Any, options: Mapping[str, Any]) -> None:
    for name, other in (("b", b), ("c", c)):
        if other is None:
            continue
        if type(other) not in {list, tuple}:
            raise ArgumentError(
                argument=name,
                got=f"{type(other).__name__}, with lists as a and b",
                wanted=f"a list of {len(a)} matrices",
                fix=f"Pass [{name}] * len(a) to add one matrix to all.",
            )
        if len(other) != len(a):
            raise ShapeError(
                argument=name,
                got=f"{len(other)} matrices",
                wanted=f"as many as a has, {len(a)}",
                fix="Pass lists of one length.",
            )
    if "out" in options:
        raise ArgumentError(
            argument="out", got="an argument of a product of lists", wanted="none", fix="Omit out=: results are new."
        )


def _at_once(
    groups: Sequence[_Arrays], alpha: Any, beta: Any, stream: object, executor: str | None
) -> list[Any] | None:
    """Return the products by one launch for each table of groups, or None where each is computed for itself."""
    named = None if stream is None else resolve_stream(stream)
    if named is None and executor is None:
        with suppress(IllegalConfigError):
            results = _of_torch(groups, alpha, beta)
            if results is not None:
                return results

    def operands(a: Any, b: Any, c: Any) -> _Operands:
        x, y = inspect(a, "a", named, PRODUCTS), inspect(b, "b", named, PRODUCTS)
        return x, y, None if c is None else inspect(c, "c", named, PRODUCTS)

    known = _each(operands, groups)
    first = known[0][0] if known else None
    if first is None or first.dtype.name not in ELEMENTS:
        return None
    by = _factors(alpha, beta, first.dtype)
    if not all(_fits(first, *group, added=beta is not None and by[1] != 0) for group in known):
        return None
    arrays = [a for a, _, _ in groups]
    with suppress(IllegalConfigError):  # no kernel of lists takes the elements on that GPU
        if first.device == CPU:
            on_emulator = (executor or settings.default_executor()) == "emulator"
            return _emulated(arrays, known, by) if on_emulator else None
        if first.library in ALLOCATE and executor in {None, "auto", "gpu"}:
            return _on_gpu(arrays, known, by, named)
    return None


def _factors(alpha: Any, beta: Any, dtype: DType) -> tuple[float, float]:
    """Return the numbers that scale products and addends; those of integers are whole."""
    return factor(alpha, "alpha", dtype).real, factor(beta or 0.0, "beta", dtype).real


def _of_torch(groups: Sequence[_Arrays], alpha: Any, beta: Any) -> list[Any] | None:
    """Do as :func:`_on_gpu` for plain tensors on the current stream, or return None where any needs another look.

    The checks are those of :mod:`matmill.dispatch.fast_path`. They take a fraction of the time of operands.
    """
    torch = fast_path.torch
    first: Any = groups[0][0] if groups else None
    if type(first) not in torch.classes or not first.is_cuda or torch.tracing() or torch.forward_ad._current_level >= 0:  # noqa: SLF001 — as there
        return None
    kind, device, recording = first.dtype, first.get_device(), torch.recording()
    dtype = torch.dtypes.get(kind)
    if dtype is None or dtype.name not in ELEMENTS:
        return None
    by = _factors(alpha, beta, dtype)
    added = by[1] != 0
    rows, results = [], []
    for a, b, c in groups:
        if added != (c is not None):
            return None
        for x in (a, b, c) if added else (a, b):
            usual = type(x) in torch.classes and x.dtype is kind and x.get_device() == device and not x.is_neg()
            if not usual or (recording and x.requires_grad) or x.dim() != 2:
                return None
        (m, k), (terms, n) = a.shape, b.shape
        if terms != k or (added and c.shape != (m, n)):
            return None
        d = a.new_empty((m, n))
        results.append(d)
        to = d.data_ptr()
        own = (c.data_ptr(), *c.stride()) if added else (to, n, 1)
        rows.append((a.data_ptr(), b.data_ptr(), own[0], to, *a.stride(), *b.stride(), *own[1:], n, 1, m, n, k))
    _launch(rows, dtype, by, GPU.get(device), torch.current_stream(device))
    return results


def _launch(rows: Sequence[Row], dtype: DType, by: tuple[float, float], gpu: GPU, stream: int) -> None:
    for source, launch in list_launches(rows, dtype, by, gpu.arch):
        gpu.launch(compile_source(source, gpu.arch.target), launch, stream)


def _fits(first: Operand, a: Operand, b: Operand, c: Operand | None, *, added: bool) -> bool:
    """Tell whether operands are matrices that fit together, of the type, device and library of the first one."""
    alike = all(
        x is None or (x.dtype, x.device, x.library) == (first.dtype, first.device, first.library) for x in (a, b, c)
    )
    matrices = len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0]
    there = not added if c is None else added and tuple(c.shape) == (a.shape[0], b.shape[1])
    return alike and matrices and there


def row(address: int, a: Operand, b: Operand, c: Operand | None) -> Row:
    """Return the addresses, strides and extents of a product whose D is packed at ``address``."""
    (m, k), n = a.shape, b.shape[1]
    third = (address, (n, 1)) if c is None else (c.address, c.strides)
    return a.address, b.address, third[0], address, *a.strides, *b.strides, *third[1], n, 1, m, n, k


def _on_gpu(a: Sequence[Any], groups: Sequence[_Operands], by: tuple[float, float], named: int | None) -> list[Any]:
    first = groups[0][0]
    gpu, allocate = GPU.get(first.device[1]), ALLOCATE[first.library]
    stream = current_stream(first.library, first.device[1], first) if named is None else named
    allocated = [
        allocate(like, x, (x.shape[0], y.shape[1]), named, None) for like, (x, y, _) in zip(a, groups, strict=True)
    ]
    rows = [row(address, *group) for group, (_, address) in zip(groups, allocated, strict=True)]
    _launch(rows, first.dtype, by, gpu, stream)
    results = [array for array, _ in allocated]
    if named is not None:  # their libraries reuse memory in the order of another stream
        gpu.keep((*results, *(x.owner for group in groups for x in group if x is not None)), stream)
    if not fast_path.torch.classes and first.library == "torch":
        fast_path.torch.enable()
    return results


def _emulated(a: Sequence[Any], groups: Sequence[_Operands], by: tuple[float, float]) -> list[Any]:
    """Return the products of host arrays by the kernel's PTX, emulated on the default arch."""
    from matmill.emulator import Memory, run  # noqa: PLC0415 — GPU users never need it, and it takes time to import

    arch, memory = arches.get(arches.DEFAULT), Memory()
    dtype = groups[0][0].dtype
    results = [np.empty((x.shape[0], y.shape[1]), dtype.numpy) for x, y, _ in groups]
    rows = []
    for number, (group, result) in enumerate(zip(groups, results, strict=True)):
        to = memory.bind(f"D[{number}]", result, access="w").address
        bound: list[Any] = [
            x and x._replace(address=memory.bind(f"{name}[{number}]", x.owner, access="r").address)
            for name, x in zip("ABC", group, strict=True)
        ]
        rows.append(row(to, *bound))
    for source, launch in list_launches(rows, dtype, by, arch):
        report = run(compile_ptx(source, arch.target), launch, memory, races=False, counters=False)
        if not report.ok:
            raise emulator_fault(launch, report)
    return [from_host(like, x, result) for like, (x, _, _), result in zip(a, groups, results, strict=True)]
