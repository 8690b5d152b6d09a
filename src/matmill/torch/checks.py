"""The checks of the operators, for tensors with and without memory: those of matmill's functions, same messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from matmill.arrays import Operand, inspect
from matmill.arrays.operand import CPU
from matmill.dispatch.gemm import MATMUL, checked_options
from matmill.dispatch.transpose import factor
from matmill.dispatch.validate import NO_OPTIONS, Operation, Request, check_apart, validate
from matmill.dtypes import BY_TO, DType, named
from matmill.torch.schemas import OPERATORS

#: Symbolic scalars; they are checked at run time.
SYMBOLS = frozenset({torch.SymInt, torch.SymFloat})


def check_host(name: str, tensors: tuple[Any, ...], factors: dict[str, Any], out: Any = None) -> tuple[int, ...]:
    """Return the shape of an operator's result for CPU tensors. Raises the errors of :mod:`matmill.ops`."""
    operator = OPERATORS[name]
    read = partial(inspect, stream=None, dtypes=operator.dtypes)
    request = _request(operator.operation, tensors, factors, out, read)
    shape = validate(request)
    if out is not None:
        # As in matmill's functions, a y that is scaled by 0 is not read, and may then be on any device.
        unread = "beta" in factors and factor(factors["beta"], "beta", request.a.dtype) == 0
        check_apart(request._replace(b=None) if unread else request)
    return shape


def check_fake(name: str, tensors: tuple[Any, ...], factors: dict[str, Any], out: Any = None) -> tuple[Any, ...]:
    """Return the shape of an operator's result for tensors without memory, whose sizes may be symbols.

    Symbols are checked by the example sizes that they had when they were created. Unbacked symbols (the result of
    nonzero, say), and whether ``out`` overlaps an operand, are checked when there is memory.
    """
    known = [x for x in tensors if x is not None]
    symbols = [size for x in known for size in (*x.shape, *x.stride()) if type(size) is torch.SymInt]
    if not all(size.node.has_hint() for size in symbols):
        return _symbolic(name, tensors)
    operator = OPERATORS[name]
    read = partial(_outline, dtypes=operator.dtypes)
    request = _request(operator.operation, tensors, factors, out, read)
    shape = validate(request)
    return _symbolic(name, tensors) if symbols else shape


def _symbolic(name: str, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the result's shape in symbols, for operands that are compatible."""
    a = tensors[0].shape
    if name == "transpose":
        return (*a[:-2], a[-1], a[-2])
    b = tensors[1].shape
    batch = torch.broadcast_shapes(a[:-2], b[:-2])
    if name == "transpose_add":
        return (*batch, a[-1], a[-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _request(
    operation: Operation,
    tensors: tuple[Any, ...],
    factors: dict[str, Any],
    out: Any,
    read: Callable[[Any, str], Operand],
) -> Request:
    a = read(tensors[0], operation.first)
    b = read(tensors[1], operation.second) if len(tensors) > 1 else None
    bias = read(tensors[2], "bias") if len(tensors) > 2 and tensors[2] is not None else None
    options = NO_OPTIONS
    if operation is MATMUL:
        options = checked_options(
            factors.get("activation"),
            factors.get("out_dtype"),
            factors.get("precision"),
            a.dtype,
            batch_invariant=factors.get("batch_invariant", False),
        )
    else:
        for name, value in factors.items():
            if type(value) not in SYMBOLS:
                factor(value, name, a.dtype)
    target = None if out is None else read(out, "out")
    return Request(operation, a, b, None, target, 1.0, 0.0, tensors[0], a, out, bias, options)


def _outline(x: Any, argument: str, dtypes: dict[str, DType]) -> Operand:
    """Return the operand of a fake tensor, which lacks only its address."""
    device = CPU if x.device.type == "cpu" else (x.device.type, x.device.index or 0)
    dtype = named(str(x.dtype).removeprefix("torch."), argument, dtypes, conversion=BY_TO)
    shape, strides = (tuple(map(_met, sizes)) for sizes in (x.shape, x.stride()))
    return Operand(shape, strides, dtype, device, 0, readonly=False, library="numpy", owner=x)


def _met(size: Any) -> int:
    """Return a size, or a symbol's example size."""
    return int(size.node.hint) if type(size) is torch.SymInt else size
