"""The backends: a GPU for its own arrays, a GPU for copies of host arrays, NumPy, and the emulator.

A backend takes a checked :class:`~matmill.dispatch.validate.Request` and the shape of its result, and returns the
result as an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill import arch as arches
from matmill.arrays import ALLOCATE, Operand, Result, current_stream, from_host, mirrors
from matmill.arrays.dlpack import Export
from matmill.arrays.operand import CPU, packed_strides
from matmill.arrays.overlap import bounds
from matmill.arrays.results import namespace
from matmill.dispatch.plan_cache import Call, PreparedCall, misaligned, prepared, recall
from matmill.dispatch.validate import NO_OPTIONS, Request
from matmill.dtypes import I8, DType
from matmill.errors import LaunchError, OutOfMemoryError, size
from matmill.launch import Launch
from matmill.lowering import NARROW, Shape
from matmill.plan import Addresses, prepare
from matmill.problem import SPLIT_METHODS
from matmill.runtime.gpu import GPU
from matmill.runtime.memory import Allocation
from matmill.streaming import CHUNK, OnGPU, Progress, inner_steps, plan_stream, stream_inner

if TYPE_CHECKING:
    from matmill.emulator import Report

_CUDA = 2  # kDLCUDA
Array: TypeAlias = NDArray[Any]


def on_gpu(request: Request, call: Call, stream: int | None) -> Any:
    """Compute on a GPU's own arrays, without copies and without waiting.

    In the usual case, arrays of one library on its current stream, only a result and a plan are needed. In all other
    cases streams wait for each other, and references keep memory that a library might reuse until the kernels have run.
    """
    # Unpacked at once, as in plan_cache.signature: every call comes through here.
    _operation, a, b, c, out, alpha, beta, like, home, array, bias, options = request
    library, index = home.library, home.device[1]
    allocate: Callable[..., Result] = ALLOCATE.get(library, _our_memory)
    held: tuple[object, ...] = ()
    others: tuple[int, ...] = ()
    named = stream
    if stream is None:
        stream = current_stream(library, index, home)
    if named is not None or not call.signature:
        held = tuple(
            x.owner for x in (a, b, c, bias) if x is not None and (named is not None or x.library not in ALLOCATE)
        )
        others = () if named is not None else _other_streams((a, b, c, bias, out), library, index, stream)
        call = call if call.signature else recall(request, call.shape)
    if out is None:
        array, address = allocate(like, a, call.shape, named, options.out_dtype)
        call = misaligned(call, address) if address & 15 else call
    else:
        address = out.address
    for other in others:
        GPU.get(index).order(other, stream)
    plan = (call if isinstance(call, PreparedCall) else prepared(call, request, address, stream)).plan
    stream_buffers = plan.stream_buffers
    workspace, counter = stream_buffers(stream)
    if plan.workspace and not workspace:
        try:
            lent, workspace = allocate(like, a, plan.workspace, named, I8)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            raise _no_workspace(request, plan.workspace) from error
        # Memory from a library lives until the launches are enqueued; ours until they have run.
        held = held if library in ALLOCATE else (*held, lent)
    plan.run(operand_addresses(request, address, workspace, counter), alpha, beta, stream)
    if held:
        GPU.get(index).keep(held, stream)
    for other in others:
        GPU.get(index).order(stream, other)
    return array if out is not None or library in ALLOCATE else _export(request, call.shape, array, stream)


def _is_out_of_memory(error: Exception) -> bool:
    """Tell whether a library's exception means that memory is exhausted: torch and CuPy have their own classes."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _no_workspace(request: Request, nbytes: int) -> OutOfMemoryError:
    if request.options.precision in SPLIT_METHODS:
        what, fix = "pieces of the operands", "omit precision=: FMA needs no pieces"
    else:
        what = "copies of operands or for partial sums"
        names = f"{request.operation.first} and {request.operation.second}"
        fix = f"start the rows of {names} on 16 bytes: rows that start elsewhere are copied"
    return OutOfMemoryError(
        argument="workspace",
        got="no memory for it on the GPU",
        wanted=f"{size(nbytes)} beside the result, for {what}",
        fix=f"Free memory, or {fix}. `matmill why` says what takes how much.",
    )


def _our_memory(
    _like: Any, operand: Operand, shape: int | Shape, _stream: int | None, wanted: DType | None = None
) -> Result:
    """Allocate as the functions of :data:`ALLOCATE` do, for a library that accepts memory only through DLPack."""
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    memory = GPU.get(operand.device[1]).empty(count * (wanted or operand.dtype).itemsize)
    return memory, memory.address


def operand_addresses(request: Request, result: int, workspace: int, counter: int) -> Addresses:
    """Return the addresses of a plan's operands, 0 for those that are absent."""
    a, b, c, bias = (0 if x is None else x.address for x in (request.a, request.b, request.c, request.bias))
    return a, b, c, result, workspace, counter, bias


def _other_streams(operands: tuple[Operand | None, ...], library: str, index: int, stream: int) -> tuple[int, ...]:
    """Return the streams that must wait for each other: other libraries', and those that arrays name."""
    foreign = [
        operand
        for operand in operands
        if operand is not None and (operand.library != library or operand.stream is not None)
    ]
    streams = [current_stream(operand.library, index, operand) for operand in foreign]
    return tuple(other for other in dict.fromkeys(streams) if other != stream)


def _export(request: Request, shape: Shape, kept: Allocation, stream: int) -> Any:
    """Return the result in matmill's memory as an array of a library that accepts memory only through DLPack."""
    gpu = GPU.get(request.home.device[1])
    export = Export(
        kept.address,
        shape,
        request.result_type,
        device=(_CUDA, gpu.index),
        keep=kept,
        wait=lambda consumer: gpu.order(stream, consumer),
    )
    return namespace(request.like, request.home).from_dlpack(export)


def through_gpu(request: Request, shape: Shape, stream: int | None, progress: Progress | None = None) -> Any:
    """Copy host arrays to GPU 0, compute there and copy the result back.

    Long narrow products are streamed in chunks, and ``progress`` is called with their bytes.
    """
    gpu = GPU.get(0)
    a, b = request.a, request.b
    real = a.dtype.part is None and not a.dtype.is_integer
    plain = request.bias is None and request.options == NO_OPTIONS and real
    if b is not None and request.operation.streams and plain and a.nbytes + b.nbytes > CHUNK and _narrow(a, b):
        return _deliver(request, _streamed(gpu, request, b, shape, progress))
    with ExitStack() as stack:
        memory = stack.enter_context(gpu.empty(request.result_type.itemsize * math.prod(shape)))
        there = uploaded(gpu, request)
        call = recall(there, shape)
        plan = (call if isinstance(call, PreparedCall) else prepared(call, there, memory.address)).plan
        workspace, counter = plan.stream_buffers(stream or 0)
        if plan.workspace and not workspace:
            workspace = stack.enter_context(gpu.empty(plan.workspace)).address
        addresses = operand_addresses(there, memory.address, workspace, counter)
        plan.run(addresses, request.alpha, request.beta, stream or 0)
        gpu.synchronize()
        return _deliver(request, memory.download(shape, request.result_type.numpy))


def uploaded(gpu: GPU, request: Request) -> Request:
    """Return a request for host arrays with copies of them on a GPU, and no ``out``."""
    a, b, c, bias = request.a, request.b, request.c, request.bias
    x = _upload(gpu, a, "a")
    y = None
    if b is not None:
        # A matrix and its transpose in the same memory on the host are copied once.
        y = x._replace(shape=b.shape, strides=_swapped(x.strides)) if mirrors(a, b) else _upload(gpu, b, "b")
    return request._replace(
        a=x,
        b=y,
        c=None if c is None else _upload(gpu, c, "c"),
        bias=None if bias is None else _upload(gpu, bias, "bias"),
        out=None,
    )


def _narrow(a: Operand, b: Operand) -> bool:
    """Tell whether the product has few rows and columns."""
    return len(a.shape) == len(b.shape) == 2 and max(a.shape[0], b.shape[1]) <= NARROW


def _streamed(gpu: GPU, request: Request, b: Operand, shape: Shape, progress: Progress | None) -> Array:
    a, c = request.a, request.c
    device = OnGPU(gpu)
    plan = plan_stream(
        shape[0],
        shape[1],
        a.shape[1],
        a.dtype,
        e_strides=(a.strides[0], a.strides[1]),
        f_strides=(b.strides[0], b.strides[1]),
        gram=mirrors(a, b),
        free=device.free_bytes(),
    )
    return stream_inner(
        device,
        plan,
        inner_steps(gpu.arch),
        a.owner,
        b.owner,
        c=None if c is None else np.broadcast_to(c.owner, shape),
        alpha=request.alpha.real,
        beta=request.beta.real,
        progress=progress,
    )


def _swapped(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (*strides[:-2], *strides[-2:][::-1])


def _upload(gpu: GPU, operand: Operand, name: str) -> Operand:
    """Copy an operand to GPU memory, with its strides if its elements are close together, else packed."""
    low, high = bounds(operand) if operand.nbytes else (0, -1)
    size = operand.dtype.itemsize
    if (high - low + 1) * size <= 2 * operand.nbytes:
        corner = tuple(slice(-1, None) if stride < 0 else slice(0, 1) for stride in operand.strides)
        span = np.lib.stride_tricks.as_strided(operand.owner[corner], (high - low + 1,), (size,))
        memory = gpu.upload(span, name)
        return operand._replace(device=("cuda", gpu.index), address=memory.address - low * size, owner=memory)
    # Elements that repeat (stride 0) are copied once.
    once = operand.owner[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in operand.strides)]
    packed = packed_strides(once.shape)
    strides = tuple(0 if own == 0 else new for own, new in zip(operand.strides, packed, strict=True))
    memory = gpu.upload(once, name)
    return operand._replace(strides=strides, device=("cuda", gpu.index), address=memory.address, owner=memory)


def on_cpu(request: Request, shape: Shape) -> Any:
    """Compute on host arrays with NumPy."""
    with np.errstate(all="ignore"):  # overflow and NaN are results, as on a GPU, not warnings
        return _deliver(request, request.operation.compute(request, shape))


def emulated(request: Request, shape: Shape) -> Any:
    """Compute on host arrays with the production kernel's PTX, emulated on the default arch."""
    from matmill.emulator import Memory  # noqa: PLC0415 — GPU users never need it, and it takes time to import
    from matmill.emulator import run as emulate  # noqa: PLC0415 — see above

    a, b, c, bias, out = request.a, request.b, request.c, request.bias, request.out
    dtype = request.result_type
    target = np.empty(shape, dtype.numpy) if out is None else out.owner
    same = out is not None and any(x is not None and x.address == out.address for x in (a, b, c))
    memory = Memory()
    to = memory.bind("D", target, access="rw" if same else "w")

    def bound(name: str, operand: Operand) -> Operand:
        own = out is not None and operand.address == out.address
        return operand._replace(address=(to if own else memory.bind(name, operand.owner, access="r")).address)

    x = bound("A", a)
    y = None
    if b is not None:
        y = b._replace(address=x.address) if mirrors(a, b) else bound("B", b)
    there = request._replace(
        a=x, b=y, c=None if c is None else bound("C", c), bias=None if bias is None else bound("bias", bias)
    )
    steps = tuple(stride // dtype.itemsize for stride in target.strides)
    d = Operand(shape, steps, dtype, CPU, to.address, readonly=False, library="numpy", owner=target)
    ready = prepare(request.operation.lower(there, d), arches.get(arches.DEFAULT))
    room = np.empty(max((one.workspace for one in ready), default=0), np.uint8)
    workspace = memory.bind("workspace", room, access="rw").address
    counted = any(one.counts for one in ready)
    counter = memory.bind("counter", np.zeros(1, np.uint32), access="rw").address if counted else 0
    addresses = operand_addresses(there, to.address, workspace, counter)
    for one in ready:
        texts = one.ptx
        for offsets in one.stage.offsets:
            launches = one.launches(addresses, offsets, request.alpha, request.beta)
            for ptx, launch in zip(texts, launches, strict=True):
                # The kernels' tests detect races; here that would triple the time.
                report = emulate(ptx, launch, memory, races=False, counters=False)
                if not report.ok:
                    raise emulator_fault(launch, report)
    return request.array if out is not None else from_host(request.like, request.home, target)


def emulator_fault(launch: Launch, report: Report) -> LaunchError:
    """Return the error for an emulated launch of a kernel of matmill's in which hazards were found."""
    return LaunchError(
        argument=f"launch {launch}",
        got="; ".join(str(hazard) for hazard in report.hazards),
        wanted="a run without errors",
        fix="This is a fault of matmill's kernel: please report it with the shapes and strides.",
    )


def _deliver(request: Request, product: np.ndarray[Any, Any]) -> Any:
    if request.out is None:
        return from_host(request.like, request.home, product)
    if product is not request.out.owner:
        request.out.owner[...] = product
    return request.array
