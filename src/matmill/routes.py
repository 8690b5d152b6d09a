"""The ways a checked product can take: a GPU's own arrays, host arrays through a GPU, NumPy's BLAS, the emulator.

A route gets a :class:`Request` that has been checked and returns the array with the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from matmill import arch as arches
from matmill.arrays import Operand, current_stream, empty_result, from_host
from matmill.arrays.dlpack import Export
from matmill.arrays.operand import CPU, packed_strides
from matmill.arrays.overlap import bounds
from matmill.arrays.results import namespace
from matmill.errors import LaunchError
from matmill.gpu import GPU, Allocation
from matmill.layout import lower
from matmill.plan import operands_at, prepare, recall

_CUDA = 2  # kDLCUDA
#: Libraries whose own streams we work on unless told otherwise, and that free memory in the order of these streams.
_ORDERED = {"torch", "cupy"}


class Request(NamedTuple):
    """A product whose operands fit together. ``c`` is None where beta is 0; ``like`` is the caller's first array."""

    a: Operand
    b: Operand
    c: Operand | None
    out: Operand | None
    shape: tuple[int, ...]
    alpha: float
    beta: float
    like: Any
    out_array: Any


def on_gpu(request: Request, stream: int | None) -> Any:
    """Arrays that lie on a GPU: launched in place, without copies and without waiting."""
    a, b, c, out, shape, alpha, beta, like, out_array = request
    index = a.device[1]
    gpu = GPU.get(index)
    others: list[int] = []
    named = stream
    # What the libraries might hand out again before the kernel has run must be held until it has.
    held = tuple(x.owner for x in (a, b, c) if x is not None and (named is not None or x.library not in _ORDERED))
    if stream is None:
        stream = current_stream(a.library, index, a)
        others = _other_streams((b, c, out), a.library, index, stream)
    kept = None
    if out is not None:
        array, d = out_array, out
    else:
        fresh = empty_result(like, a, shape, named)
        if fresh is None:
            kept = gpu.empty(a.dtype.itemsize * int(np.prod(shape)))
            array, address = None, kept.address
        else:
            array, address = fresh
        d = Operand(
            shape, packed_strides(shape), a.dtype, a.device, address, readonly=False, library=a.library, owner=None
        )
    for other in others:
        gpu.order(other, stream)
    plan = recall(gpu, a, b, c, d, skip_product=alpha == 0)
    plan.run((a.address, b.address, 0 if c is None else c.address, d.address), alpha, beta, stream)
    if held:
        gpu.keep(held, stream)
    for other in others:
        gpu.order(stream, other)
    return array if kept is None else _export(request, gpu, kept, stream)


def _other_streams(operands: tuple[Operand | None, ...], library: str, index: int, stream: int) -> list[int]:
    """Streams that must wait for each other: those of other libraries, and those that arrays name as their own."""
    foreign = [
        operand
        for operand in operands
        if operand is not None and (operand.library != library or operand.stream is not None)
    ]
    streams = [current_stream(operand.library, index, operand) for operand in foreign]
    return [other for other in dict.fromkeys(streams) if other != stream]


def _export(request: Request, gpu: GPU, kept: Allocation, stream: int) -> Any:
    """The result in our own memory, as an array of a library that only takes memory through DLPack."""
    export = Export(
        kept.address,
        request.shape,
        request.a.dtype,
        device=(_CUDA, gpu.index),
        keep=kept,
        wait=lambda consumer: gpu.order(stream, consumer),
    )
    return namespace(request.like, request.a).from_dlpack(export)


def through_gpu(request: Request, stream: int | None) -> Any:
    """Host arrays: copied to GPU 0, multiplied there, and the result copied back."""
    gpu = GPU.get(0)
    a, b, c = request.a, request.b, request.c
    size = a.dtype.itemsize * int(np.prod(request.shape))
    with gpu.empty(size) as memory:
        d = Operand(
            request.shape,
            packed_strides(request.shape),
            a.dtype,
            ("cuda", 0),
            memory.address,
            readonly=False,
            library="numpy",
            owner=memory,
        )
        a, b = _upload(gpu, a, "a"), _upload(gpu, b, "b")
        c = None if c is None else _upload(gpu, c, "c")
        plan = recall(gpu, a, b, c, d, skip_product=request.alpha == 0)
        addresses = (a.address, b.address, 0 if c is None else c.address, d.address)
        plan.run(addresses, request.alpha, request.beta, stream or 0)
        gpu.synchronize()
        return _deliver(request, memory.download(request.shape, a.dtype.numpy))


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


def on_cpu(request: Request) -> Any:
    """Host arrays through NumPy's BLAS."""
    a, b, c = request.a, request.b, request.c
    scalar = a.dtype.numpy.type
    with np.errstate(all="ignore"):  # overflow and NaN are results here, as on a GPU, not events
        if request.alpha == 0 or 0 in request.shape:  # NumPy visits every batch of an empty result
            product = np.zeros(request.shape, a.dtype.numpy)
        else:
            product = np.asarray(np.matmul(a.owner, b.owner))
            if request.alpha != 1:
                product *= scalar(request.alpha)
        if c is not None:
            product += scalar(request.beta) * c.owner
    return _deliver(request, product)


def emulated(request: Request) -> Any:
    """Host arrays through the production kernel's own PTX, run by the emulator as on the default arch."""
    from matmill.emulator import Memory  # noqa: PLC0415 — GPU users never need it, and it takes time to import
    from matmill.emulator import run as emulate  # noqa: PLC0415 — see above

    a, b, c, out = request.a, request.b, request.c, request.out
    target = np.empty(request.shape, a.dtype.numpy) if out is None else out.owner
    in_place = c is not None and out is not None and c.address == out.address
    memory = Memory()
    d_pointer = memory.bind("D", target, access="rw" if in_place else "w")
    a_pointer = memory.bind("A", a.owner, access="r")
    b_pointer = memory.bind("B", b.owner, access="r")
    c_pointer = d_pointer if in_place else memory.bind("C", None if c is None else c.owner, access="r")
    steps = tuple(stride // a.dtype.itemsize for stride in target.strides)
    d = Operand(request.shape, steps, a.dtype, CPU, d_pointer.address, readonly=False, library="numpy", owner=target)
    stages = lower(
        a._replace(address=a_pointer.address),
        b._replace(address=b_pointer.address),
        c,
        d,
        skip_product=request.alpha == 0,
    )
    addresses = (a_pointer.address, b_pointer.address, c_pointer.address, d_pointer.address)
    for ready in prepare(stages, arches.get(arches.DEFAULT)):
        for offsets in ready.stage.offsets:
            operands = operands_at(addresses, offsets, request.alpha, request.beta)
            launch = ready.choice.kernel.launch(ready.problem, operands)
            # Races are looked for in the kernels' tests; here they would triple the time.
            report = emulate(ready.binary.ptx, launch, memory, races=False, counters=False)
            if report.hazards:
                raise LaunchError(
                    argument=f"launch {launch}",
                    got="; ".join(str(hazard) for hazard in report.hazards),
                    wanted="a run without hazards",
                    fix="This is a fault of matmill's kernel: please report it with the shapes and strides.",
                )
    return request.out_array if out is not None else from_host(request.like, a, target)


def _deliver(request: Request, product: np.ndarray[Any, Any]) -> Any:
    if request.out is None:
        return from_host(request.like, request.a, product)
    request.out.owner[...] = product
    return request.out_array
