"""The target of custom calls: from XLA's frame to a request of matmill's, on the host or on a GPU.

A call's only attribute is a text, which says all of the call but the addresses, because an executable outlives its
process in JAX's compilation cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
from matmill.dtypes import TRANSPOSES
from matmill.errors import ArgumentError
from matmill.jax.frame import ORDINAL, STREAM, Call, check_version, handler

_NAME = "matmill"
_OPERATIONS = {"matmul": MATMUL, "inner": INNER, "transpose_add": TRANSPOSE_ADD}
#: XLA_FFI_DataType of element types.
_CODES = {
    "int8": 2, "int32": 4, "float16": 10, "float32": 11, "float64": 12, "complex64": 15, "bfloat16": 16,
    "complex128": 18,
}  # fmt: skip
#: Texts of calls whose buffers had the types and shapes that they say.
_seen: set[str] = set()
_new: Callable[[type[Operand], tuple[Any, ...]], Operand] = (
    tuple.__new__
)  # the generated constructor takes twice as long
#: A request and its result.
_Bound: TypeAlias = tuple[Request, Operand]


class Problem(NamedTuple):
    """All of a call that is known when it is traced, but its arrays; ``swapped`` operands are read transposed."""

    operation: str
    alpha: complex = 1.0
    beta: complex = 0.0
    activation: str | None = None
    out_dtype: str | None = None
    precision: str | None = None
    batch_invariant: bool = False
    swapped: tuple[bool, bool] = (False, False)


def _text(problem: Problem, operands: Sequence[Any]) -> str:
    return json.dumps([problem, [(x.dtype.name, x.shape) for x in operands]], default=lambda z: (z.real, z.imag))


@lru_cache(maxsize=4096)
def _template(text: str) -> _Bound:
    """Return the request of a text, without addresses. Raises the errors of the public functions."""
    fields, arrays = json.loads(text)
    problem = Problem(*fields)
    operation, options, swapped = _OPERATIONS[problem.operation], NO_OPTIONS, (*problem.swapped, False)
    a, b, *bias = (_operand(*array, swapped=swap) for array, swap in zip(arrays, swapped, strict=False))
    if operation is not TRANSPOSE_ADD:
        options = checked_options(*problem[3:6], a.dtype, batch_invariant=problem.batch_invariant)
    vector = bias[0] if bias else None
    alpha, beta = (complex(*x) if isinstance(x, list) else x for x in problem[1:3])
    request = Request(operation, a, b, None, None, alpha, beta, None, a, None, vector, options)
    return request, _operand(request.result_type.name, validate(request))


def _operand(name: str, extents: Sequence[int], *, swapped: bool = False) -> Operand:
    """Return an operand without memory."""
    dtype, shape = TRANSPOSES[name], tuple(extents)
    owner = np.broadcast_to(np.zeros((), dtype.numpy), shape)
    x = Operand(shape, packed_strides(shape), dtype, CPU, 0, readonly=False, library="jax", owner=owner)
    return x.transposed if swapped else x


def _bound(call: Call, device: DeviceId) -> _Bound:
    """Return the request of a call."""
    text = call.text()
    request, result = _template(text)
    if text not in _seen:
        _check(call, text, result)
    operands = (x for x in (request.a, request.b, request.bias, result) if x is not None)
    a, b, *bias, out = (_at(x, address, device) for x, address in zip(operands, call.addresses(), strict=True))
    request = request._replace(a=a, b=b, home=a, bias=bias[0] if bias else None, out=out)
    if request.operation is TRANSPOSE_ADD:
        request = request._replace(b=None) if request.beta == 0 else request
        request = without_x(request) if request.alpha == 0 else request
    return request, out


def _check(call: Call, text: str, result: Operand) -> None:
    """Check that XLA's buffers are those that a text says."""
    wanted = [(_CODES[name], tuple(shape)) for name, shape in json.loads(text)[1]]
    wanted.append((_CODES[result.dtype.name], result.shape))
    got = call.arrays()
    if got != wanted:
        fix = "Call the functions of matmill.jax."
        raise ArgumentError(argument="call", got=f"types and shapes {got}", wanted=f"{wanted}", fix=fix)
    _seen.add(text)


def _at(x: Operand, address: int, device: DeviceId) -> Operand:
    """Return an operand at an address, on the host with a view of its memory."""
    shape, strides, dtype, owner = x.shape, x.strides, x.dtype, x.owner
    if device == CPU and x.nbytes:
        memory: Any = (c_char * x.nbytes).from_address(address)
        owner = np.ndarray(shape, dtype.numpy, memory, strides=tuple(dtype.itemsize * stride for stride in strides))
    return _new(Operand, (shape, strides, dtype, device, address, False, "jax", owner, None))


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
