"""The ways a checked product can take: a GPU's own arrays, host arrays through a GPU, NumPy's BLAS, the emulator.

A route gets a :class:`~matmill.requests.Request` that has been checked and its result's shape; it returns the array
with the result.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill import arch as arches
from matmill.arrays import ALLOCATE, Operand, current_stream, from_host, mirrors
from matmill.arrays.dlpack import Export
from matmill.arrays.operand import CPU, packed_strides
from matmill.arrays.overlap import bounds
from matmill.arrays.results import namespace
from matmill.errors import LaunchError
from matmill.gpu import GPU, Allocation
from matmill.layout import NARROW, lower
from matmill.plan import Plan, prepare, recall
from matmill.requests import Request
from matmill.streaming import CHUNK, OnGPU, Progress, inner_steps, plan_stream, stream_inner

_CUDA = 2  # kDLCUDA
#: Wider copies of 16-bit operands that BLAS is given at a time; much more than its own blocks, much less than memory.
_WIDENED_BYTES = 32 * 2**20

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


def in_place(request: Request, shape: Shape, plans: dict[int, Plan]) -> Any:
    """Arrays of one library that lie on a GPU, on that library's current stream: the shortest way.

    ``plans`` are those of such products, by the result's address modulo 16; one that is missing is added.
    """
    a, b, c, out, alpha, beta, like, array = request
    allocate = ALLOCATE[a.library]
    if out is None:
        array, address = allocate(like, a, shape)
    else:
        address = out.address
    plan = plans.get(address & 15)
    if plan is None:
        d = _packed(shape, a, address) if out is None else out
        plan = plans[address & 15] = recall(GPU.get(a.device[1]), a, b, c, d, skip_product=alpha == 0)
    room = allocate(like, a, plan.workspace, raw=True) if plan.workspace else None
    addresses = (a.address, b.address, 0 if c is None else c.address, address, 0 if room is None else room[1])
    plan.run(addresses, alpha, beta, current_stream(a.library, a.device[1]))
    return array


def on_gpu(request: Request, shape: Shape, stream: int | None) -> Any:
    """Arrays that lie on a GPU: launched in place, without copies and without waiting."""
    a, b, c, out, alpha, beta, like, array = request
    index = a.device[1]
    gpu = GPU.get(index)
    others: list[int] = []
    named = stream
    # What the libraries might hand out again before the kernel has run must be held until it has.
    held = tuple(x.owner for x in (a, b, c) if x is not None and (named is not None or x.library not in ALLOCATE))
    if stream is None:
        stream = current_stream(a.library, index, a)
        others = _other_streams((b, c, out), a.library, index, stream)
    kept, allocate = None, ALLOCATE.get(a.library)
    if out is not None:
        d = out
    else:
        if allocate is None:
            kept = gpu.empty(a.dtype.itemsize * math.prod(shape))
            address = kept.address
        else:
            array, address = allocate(like, a, shape, named)
        d = _packed(shape, a, address)
    for other in others:
        gpu.order(other, stream)
    plan = recall(gpu, a, b, c, d, skip_product=alpha == 0)
    room, at = None, 0  # the workspace, which must live until the launches are made, and its address
    if plan.workspace and allocate is not None:
        room, at = allocate(like, a, plan.workspace, named, raw=True)
    elif plan.workspace:
        room = gpu.empty(plan.workspace)
        held, at = (*held, room), room.address
    addresses = (a.address, b.address, 0 if c is None else c.address, d.address, at)
    plan.run(addresses, alpha, beta, stream)
    if held:
        gpu.keep(held, stream)
    for other in others:
        gpu.order(stream, other)
    return array if kept is None else _export(request, shape, gpu, kept, stream)


def _packed(shape: tuple[int, ...], like: Operand, address: int) -> Operand:
    """The operand of a fresh result beside ``like``."""
    strides = packed_strides(shape)
    return Operand(shape, strides, like.dtype, like.device, address, readonly=False, library=like.library, owner=None)


def _other_streams(operands: tuple[Operand | None, ...], library: str, index: int, stream: int) -> list[int]:
    """Streams that must wait for each other: those of other libraries, and those that arrays name as their own."""
    foreign = [
        operand
        for operand in operands
        if operand is not None and (operand.library != library or operand.stream is not None)
    ]
    streams = [current_stream(operand.library, index, operand) for operand in foreign]
    return [other for other in dict.fromkeys(streams) if other != stream]


def _export(request: Request, shape: Shape, gpu: GPU, kept: Allocation, stream: int) -> Any:
    """The result in our own memory, as an array of a library that only takes memory through DLPack."""
    export = Export(
        kept.address,
        shape,
        request.a.dtype,
        device=(_CUDA, gpu.index),
        keep=kept,
        wait=lambda consumer: gpu.order(stream, consumer),
    )
    return namespace(request.like, request.a).from_dlpack(export)


def through_gpu(request: Request, shape: Shape, stream: int | None, progress: Progress | None = None) -> Any:
    """Host arrays: copied to GPU 0, multiplied there, and the result copied back; long narrow ones piece by piece.

    ``progress`` is told of the bytes of those.
    """
    gpu = GPU.get(0)
    a, b, c = request.a, request.b, request.c
    if len(a.shape) == len(b.shape) == 2 and max(shape) <= NARROW and a.nbytes + b.nbytes > CHUNK:
        return _deliver(request, _streamed(gpu, request, shape, progress))
    with ExitStack() as stack:
        memory = stack.enter_context(gpu.empty(a.dtype.itemsize * math.prod(shape)))
        x = _upload(gpu, a, "a")
        # What is one matrix on the host stays one.
        y = x._replace(shape=b.shape, strides=_swapped(x.strides)) if mirrors(a, b) else _upload(gpu, b, "b")
        z = None if c is None else _upload(gpu, c, "c")
        d = _packed(shape, x, memory.address)
        plan = recall(gpu, x, y, z, d, skip_product=request.alpha == 0)
        room = stack.enter_context(gpu.empty(plan.workspace)).address if plan.workspace else 0
        addresses = (x.address, y.address, 0 if z is None else z.address, d.address, room)
        plan.run(addresses, request.alpha, request.beta, stream or 0)
        gpu.synchronize()
        return _deliver(request, memory.download(shape, a.dtype.numpy))


def _streamed(gpu: GPU, request: Request, shape: Shape, progress: Progress | None) -> Array:
    a, b, c = request.a, request.b, request.c
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
        alpha=request.alpha,
        beta=request.beta,
        progress=progress,
    )


def _swapped(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (*strides[:-2], *strides[-2:][::-1])


def _upload(gpu: GPU, operand: Operand, name: str) -> Operand:
    """The operand in GPU memory, with its strides where the elements lie close together, else packed."""
    low, high = bounds(operand) if operand.nbytes else (0, -1)
    size = operand.dtype.itemsize
    if (high - low + 1) * size <= 2 * operand.nbytes:
        corner = tuple(slice(-1, None) if stride < 0 else slice(0, 1) for stride in operand.strides)
        span = np.lib.stride_tricks.as_strided(operand.owner[corner], (high - low + 1,), (size,))
        memory = gpu.upload(span, name)
        return operand._replace(device=("cuda", gpu.index), address=memory.address - low * size, owner=memory)
    # Repeated elements travel once.
    once = operand.owner[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in operand.strides)]
    packed = packed_strides(once.shape)
    strides = tuple(0 if own == 0 else new for own, new in zip(operand.strides, packed, strict=True))
    memory = gpu.upload(once, name)
    return operand._replace(strides=strides, device=("cuda", gpu.index), address=memory.address, owner=memory)


def on_cpu(request: Request, shape: Shape) -> Any:
    """Host arrays through NumPy's BLAS."""
    a, b, c = request.a, request.b, request.c
    scalar = a.dtype.accumulator.numpy.type
    with np.errstate(all="ignore"):  # overflow and NaN are results here, as on a GPU, not events
        if request.alpha == 0 or 0 in shape:  # NumPy visits every batch of an empty result
            product = np.zeros(shape, scalar)
        else:
            product = _widened(a.owner, b.owner, scalar) if a.dtype.wider else np.asarray(np.matmul(a.owner, b.owner))
            if request.alpha != 1:
                product *= scalar(request.alpha)
        if c is not None:
            product += scalar(request.beta) * c.owner.astype(scalar, copy=False)
        # No copy but where the sums were wider than the elements: they are rounded here, once.
        return _deliver(request, product.astype(a.dtype.numpy, copy=False))


def _widened(a: Array, b: Array, scalar: type[np.generic]) -> Array:
    """``a @ b`` summed in a wider type, for which a bounded stretch of k is converted at a time."""
    k = a.shape[-1]
    per_k = np.dtype(scalar).itemsize * ((a.size + b.size) // max(1, k))
    step = max(1, _WIDENED_BYTES // max(1, per_k))
    total = np.zeros(np.matmul(a[..., :0], b[..., :0, :] if b.ndim > 1 else b[:0]).shape, scalar)
    for start in range(0, k, step):
        part = slice(start, start + step)
        rows = b[..., part, :] if b.ndim > 1 else b[part]
        total += np.matmul(a[..., part].astype(scalar), rows.astype(scalar))
    return total


def emulated(request: Request, shape: Shape) -> Any:
    """Host arrays through the production kernel's own PTX, run by the emulator as on the default arch."""
    from matmill.emulator import Memory  # noqa: PLC0415 — GPU users never need it, and it takes time to import
    from matmill.emulator import run as emulate  # noqa: PLC0415 — see above

    a, b, c, out = request.a, request.b, request.c, request.out
    target = np.empty(shape, a.dtype.numpy) if out is None else out.owner
    same = c is not None and out is not None and c.address == out.address
    memory = Memory()
    d_pointer = memory.bind("D", target, access="rw" if same else "w")
    a_pointer = memory.bind("A", a.owner, access="r")
    b_pointer = a_pointer if mirrors(a, b) else memory.bind("B", b.owner, access="r")
    c_pointer = d_pointer if same else memory.bind("C", None if c is None else c.owner, access="r")
    steps = tuple(stride // a.dtype.itemsize for stride in target.strides)
    d = Operand(shape, steps, a.dtype, CPU, d_pointer.address, readonly=False, library="numpy", owner=target)
    stages = lower(
        a._replace(address=a_pointer.address),
        b._replace(address=b_pointer.address),
        c,
        d,
        skip_product=request.alpha == 0,
    )
    ready = prepare(stages, arches.get(arches.DEFAULT))
    room = np.empty(max((one.workspace for one in ready), default=0), np.uint8)
    workspace = memory.bind("workspace", room, access="rw")
    addresses = (
        a_pointer.address,
        b_pointer.address,
        c_pointer.address,
        d_pointer.address,
        workspace.address,
    )
    for one in ready:
        for offsets in one.stage.offsets:
            for launch in one.launches(addresses, offsets, request.alpha, request.beta):
                # Races are looked for in the kernels' tests; here they would triple the time.
                report = emulate(one.binary.ptx, launch, memory, races=False, counters=False)
                if report.hazards:
                    raise LaunchError(
                        argument=f"launch {launch}",
                        got="; ".join(str(hazard) for hazard in report.hazards),
                        wanted="a run without hazards",
                        fix="This is a fault of matmill's kernel: please report it with the shapes and strides.",
                    )
    return request.array if out is not None else from_host(request.like, a, target)


def _deliver(request: Request, product: np.ndarray[Any, Any]) -> Any:
    if request.out is None:
        return from_host(request.like, request.a, product)
    request.out.owner[...] = product
    return request.array
