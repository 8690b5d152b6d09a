"""The target of custom calls: from XLA's frame to a request of matmill's, on the host or on a GPU.

A call's only attribute is a text, which says all of the call but the addresses, because an executable outlives its
process in JAX's compilation cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from ctypes import c_char, c_void_p, cast
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from matmill.arrays import Operand
from matmill.arrays.operand import CPU, DeviceId, packed_strides
from matmill.dispatch.backends import emulated, on_cpu, operand_addresses, through_gpu
from matmill.dispatch.gemm import INNER, MATMUL, checked_options
from matmill.dispatch.plan_cache import PreparedCall, prepared, recall
from matmill.dispatch.transpose import TRANSPOSE_ADD, without_x
from matmill.dispatch.validate import NO_OPTIONS, Request, choose_backend, validate
from matmill.dtypes import BF16, ELEMENTWISE, F16, F32, F64, I8, I32
from matmill.errors import ArgumentError
from matmill.jax.frame import ORDINAL, STREAM, Buffer, Call, check_version, handler

_NAME = "matmill"
_OPERATIONS = {"matmul": MATMUL, "inner": INNER, "transpose_add": TRANSPOSE_ADD}
#: Element types by XLA_FFI_DataType.
_TYPES = {2: I8, 4: I32, 10: F16, 11: F32, 12: F64, 16: BF16}
#: A request and its result.
_Bound: TypeAlias = tuple[Request, Operand]


class Problem(NamedTuple):
    """All of a call that is known when it is traced, but its arrays; ``swapped`` operands are read transposed."""

    operation: str
    alpha: float = 1.0
    beta: float = 0.0
    activation: str | None = None
    out_dtype: str | None = None
    precision: str | None = None
    batch_invariant: bool = False
    swapped: tuple[bool, bool] = (False, False)


def _text(problem: Problem, operands: Sequence[Any]) -> str:
    return json.dumps([problem, [(x.dtype.name, x.shape) for x in operands]])


@lru_cache(maxsize=4096)
def _template(text: str) -> _Bound:
    """Return the request of a text, without addresses. Raises the errors of the public functions."""
    fields, arrays = json.loads(text)
    problem = Problem(*fields)
    operation, options, swapped = _OPERATIONS[problem.operation], NO_OPTIONS, (*problem.swapped, False)
    a, b, *bias = (_operand(*array, swapped=swap) for array, swap in zip(arrays, swapped, strict=False))
    if operation is not TRANSPOSE_ADD:
        options = checked_options(*problem[3:6], a.dtype, batch_invariant=problem.batch_invariant)
    scalars, vector = (problem.alpha, problem.beta), bias[0] if bias else None
    request = Request(operation, a, b, None, None, *scalars, None, a, None, vector, options)
    return request, _operand(request.result_type.name, validate(request))


def _operand(name: str, extents: Sequence[int], *, swapped: bool = False) -> Operand:
    """Return an operand without memory."""
    dtype, shape = ELEMENTWISE[name], tuple(extents)
    owner = np.broadcast_to(np.zeros((), dtype.numpy), shape)
    x = Operand(shape, packed_strides(shape), dtype, CPU, 0, readonly=False, library="jax", owner=owner)
    return x.transposed if swapped else x


def _bound(call: Call, device: DeviceId) -> _Bound:
    """Return the request of a call."""
    request, result = _template(call.text())
    operands = (x for x in (request.a, request.b, request.bias, result) if x is not None)
    a, b, *bias, out = (_at(x, buffer, device) for x, buffer in zip(operands, call.buffers(), strict=True))
    request = request._replace(a=a, b=b, home=a, bias=bias[0] if bias else None, out=out)
    if request.operation is TRANSPOSE_ADD:
        request = request._replace(b=None) if request.beta == 0 else request
        request = without_x(request) if request.alpha == 0 else request
    return request, out


def _at(x: Operand, buffer: Buffer, device: DeviceId) -> Operand:
    """Return an operand in a buffer, on the host with a view of it."""
    address, code, shape = buffer
    if _TYPES.get(code) is not x.dtype or math.prod(shape) != math.prod(x.shape):
        got, wanted = f"elements of type {code}, {shape}", f"{x.dtype.name}, {x.shape}"
        raise ArgumentError(argument="call", got=got, wanted=wanted, fix="Call the functions of matmill.jax.")
    if device != CPU or not x.nbytes:
        return x._replace(address=address, device=device)
    memory: Any = (c_char * x.nbytes).from_address(address)
    steps = tuple(x.dtype.itemsize * stride for stride in x.strides)
    return x._replace(address=address, owner=np.ndarray(x.shape, x.dtype.numpy, memory, strides=steps))


def _on_host(call: Call) -> None:
    request, out = _bound(call, CPU)
    backend = choose_backend(None, request)
    if backend == "gpu":
        through_gpu(request, out.shape, None)
    else:
        (on_cpu if backend == "cpu" else emulated)(request, out.shape)


def _on_cuda(call: Call) -> None:
    """Enqueue a plan on XLA's stream, with XLA's memory as the workspace if the stream's own is too small."""
    stream = call.get(STREAM)
    request, out = _bound(call, ("cuda", call.get(ORDINAL)))
    known = recall(request, out.shape)
    plan = (known if isinstance(known, PreparedCall) else prepared(known, request, out.address, stream)).plan
    own, counter = plan.stream_buffers(stream)
    with call.workspace(plan.workspace) if plan.workspace and not own else nullcontext(own) as workspace:
        plan.run(operand_addresses(request, out.address, workspace, counter), request.alpha, request.beta, stream)


#: The functions that XLA calls, for as long as it may.
_HANDLERS = {"cpu": handler(_on_host), "CUDA": handler(_on_cuda)}


def register() -> None:
    """Register the target for both platforms; XLA asks for that of CUDA when it starts there."""
    for platform, function in _HANDLERS.items():
        jax.ffi.register_ffi_target(_NAME, jax.ffi.pycapsule(cast(function, c_void_p).value), platform=platform)


def result_shape(problem: Problem, operands: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of a result. Raises the errors of the public function of that operation."""
    return _template(_text(problem, operands))[1].shape


def call(problem: Problem, operands: Sequence[Any]) -> Any:
    """Return the result of a problem, traced or computed."""
    check_version()
    text = _text(problem, operands)
    _, out = _template(text)
    return jax.ffi.ffi_call(_NAME, jax.ShapeDtypeStruct(out.shape, out.dtype.numpy))(*operands, problem=text)
