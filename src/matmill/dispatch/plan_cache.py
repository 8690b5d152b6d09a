"""The plan cache: calls with one signature share a plan and the shape of their results, whatever their addresses.

A signature has everything that a plan depends on: the operation, which scalars are 0 or 1, the epilogue, the GPU, the
element type, the shape, strides and alignment of every operand, and whether A and B start at one address.
:func:`signature` builds it from operands, :mod:`matmill.dispatch.fast_path` builds the same one from torch tensors, and
both look it up in :data:`calls`.

Checks that depend only on the signature are made once, checks of addresses at every call.

A plan whose kernels stand in for better ones, which are being compiled, leaves :data:`calls` when these have arrived:
the next call prepares another one, and no other call looks whether it should.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

from matmill.arrays import ALLOCATE, Operand
from matmill.arrays.operand import packed_strides
from matmill.arrays.overlap import bounds
from matmill.dispatch.measured import decisions
from matmill.dispatch.validate import NO_OPTIONS, Operation, Request, choose_backend, validate
from matmill.jit import background
from matmill.jit.background import Arrival
from matmill.lowering import Shape, SubProblem
from matmill.plan import Enqueue, Plan, await_kernels, prepare, prepare_compiled
from matmill.runtime.gpu import GPU
from matmill.runtime.stream_scratch import StreamBuffers

Signature: TypeAlias = tuple[object, ...]

#: Calls in the cache. A program with more signatures prepares plans again, at about 100 µs each.
_MOST_CALLS = 1024


@dataclass(slots=True, eq=False)
class Call:
    """The part of a valid request that all requests with its signature share.

    ``signature`` is empty where a plan does not depend on layouts alone: for host arrays, and for arrays of several
    libraries.
    """

    shape: Shape
    backend: str
    signature: Signature


@dataclass(slots=True, eq=False)
class PreparedCall(Call):
    """A call with its plan: an entry of the cache.

    Everything but ``plan`` is for the fast path. ``enqueue`` launches the plan with the operation's default scalars.
    ``workspace`` and ``stream_buffers`` are the plan's. The result shares memory with X where the distance in bytes
    from X to the result is between ``x_low`` and ``x_high``; Y likewise. ``may_be_y`` says that the result may be
    exactly Y. ``like_y`` says that Y is packed and has the result's shape: torch's ``empty_like`` takes a quarter less
    time than ``empty``. ``arrival`` is that of better kernels than the plan has, if it is to be replaced.
    """

    plan: Plan
    enqueue: Enqueue
    workspace: int
    stream_buffers: Callable[[int], StreamBuffers]
    x_low: int
    x_high: int
    y_low: int
    y_high: int
    may_be_y: bool
    like_y: bool
    arrival: Arrival | None


#: Scalars that plans are specialised for; of others only the type counts.
_SPECIALISED: dict[complex, object] = {0.0: 0.0, 1.0: 1.0}

#: The cache. Threads share it without a lock: a complete entry is added by one assignment.
calls: dict[Signature, PreparedCall] = {}
#: Entries that have left the cache because better kernels have arrived, until others are prepared.
_outdated: dict[Signature, PreparedCall] = {}


def resolve(request: Request, executor: str | None) -> Call:
    """Return the call of a request, from the cache or checked now. Raises the errors of the public functions."""
    key = signature(request)
    known = calls.get(key)
    if known is None:
        return Call(validate(request), choose_backend(executor, request), key)
    if executor is not None:
        choose_backend(executor, request)
    return known


def recall(request: Request, shape: Shape) -> Call:
    """Return the call of a checked request whose operands, of whatever library, have been copied to a GPU."""
    key = signature(request, mixed=True)
    return calls.get(key) or Call(shape, "gpu", key)


def misaligned(call: Call, address: int) -> Call:
    """Return the call for a fresh result at ``address``, which is not aligned to 16 bytes as ``call`` assumes."""
    key = (call.signature, address & 15)
    return calls.get(key) or Call(call.shape, call.backend, key)


def prepared(call: Call, request: Request, address: int, stream: int = 0, *, wait: bool = False) -> PreparedCall:
    """Add a plan, made for a result at ``address``, to the call and cache it.

    While a graph captures ``stream``, a plan for which better kernels have arrived goes on. With ``wait`` the plan has
    the best kernels, whatever their compilation takes; so it has where the bits of results are to stay the same.
    """
    operation, a, b, out = request.operation, request.a, request.b, request.out
    shape, key = call.shape, call.signature
    gpu = GPU.get(a.device[1])
    outdated = _outdated.get(key)
    if outdated is not None and not wait and stream and gpu.captures(stream):
        return outdated
    d, stages = _lowered(call, request, address)
    store = None if wait or _same_bits() else background.store()
    if store is None:
        ready, arrival = prepare(stages, gpu.arch), None
    else:
        ready, arrival = prepare_compiled(stages, gpu.arch, store)
    plan = Plan(gpu, ready)
    (x_low, x_high), (y_low, y_high) = _sharing(a, out), _sharing(b, out)
    known = PreparedCall(
        shape,
        call.backend,
        key,
        plan,
        enqueue=plan.bound(1.0, operation.beta),
        workspace=plan.workspace,
        stream_buffers=plan.stream_buffers,
        x_low=x_low,
        x_high=x_high,
        y_low=y_low,
        y_high=y_high,
        may_be_y=operation.added == operation.second and b is not None and b[:2] == d[:2],
        like_y=b is not None and b.shape == shape and _layout(b.shape, b.strides) is True,
        arrival=arrival,
    )
    if len(calls) >= _MOST_CALLS:
        forget_plans()
    calls[key] = known
    _outdated.pop(key, None)
    if arrival is not None:
        arrival.then(partial(_outdate, known))
    return known


def completed(call: Call, request: Request) -> PreparedCall:
    """Return a call with the best kernels for its plan, compiled now if need be."""
    if isinstance(call, PreparedCall) and call.arrival is None:
        return call
    return prepared(call, request, 0, wait=True)


def awaited(call: Call, request: Request) -> Arrival | None:
    """Return the arrival of the kernels of :func:`completed`, which begin to be compiled; None if all are there.

    Raises :class:`~matmill.errors.CompileError` for one that has failed before.
    """
    store = None if _same_bits() else background.store()
    if store is None or (isinstance(call, PreparedCall) and call.arrival is None):
        return None
    _d, stages = _lowered(call, request, 0)
    return await_kernels(stages, GPU.get(request.a.device[1]).arch, store)


def _lowered(call: Call, request: Request, address: int) -> tuple[Operand, tuple[SubProblem[Any], ...]]:
    """Return the result of a call at ``address``, and the stages that compute it."""
    a, shape = request.a, call.shape
    d = request.out or a._replace(
        shape=shape, strides=packed_strides(shape), dtype=request.result_type, address=address, owner=None
    )
    decisions(GPU.get(a.device[1]))  # before kernels are chosen
    return d, request.operation.lower(request, d)


def _outdate(known: PreparedCall) -> None:
    key = known.signature
    if calls.get(key) is known:
        _outdated[key] = known  # before it leaves the cache: a captured call needs one of both
        calls.pop(key, None)


def _same_bits() -> bool:
    """Tell whether torch is asked for the same bits in every run."""
    return bool(getattr(sys.modules.get("torch"), "are_deterministic_algorithms_enabled", bool)())


def forget_plans() -> None:
    """Drop all plans: kernels are chosen again at the next call of each signature."""
    calls.clear()
    _outdated.clear()


def signature(request: Request, *, mixed: bool = False) -> Signature:
    """Return all that the plan of a request depends on, for ``out`` or for a fresh result that is aligned to 16 bytes.

    It is empty unless all operands have one element type, one GPU and one library on whose streams matmill works.
    ``mixed`` skips that test, for operands that were checked. The fast path builds the same tuple from tensors, for
    default scalars and no C.
    """
    # Requests and operands are unpacked at once: field by field takes half as long again.
    operation, a, b, c, out, alpha, beta, _like, _home, _array, bias, options = request
    shape, strides, dtype, device, start, _readonly, library, _owner, _stream = a
    if not mixed and (
        library not in ALLOCATE or device[0] != "cuda" or not (bias is None or _goes_with(bias, a, operation))
    ):
        return ()
    result = dtype if options is NO_OPTIONS else request.result_type
    if c is not None:
        c_shape, c_strides, other, where, _address, _readonly, owned, _owner, _stream = c
        if not mixed and (other is not result or owned != library or where != device):
            return ()
        scalars = _SPECIALISED.get(alpha, type(alpha)), _SPECIALISED.get(beta, type(beta))
        kind: object = (operation, *scalars, c_shape, c_strides)
    elif alpha == 1 and beta == operation.beta:
        kind = operation
    else:
        kind = (operation, _SPECIALISED.get(alpha, type(alpha)), _SPECIALISED.get(beta, type(beta)))
    if bias is not None or options != NO_OPTIONS:
        kind = (kind, options, bias and bias[:3])  # shape, strides and type
    layout = _layout(shape, strides)
    if b is None:
        key: Signature = (kind, device[1], dtype, shape, layout, start & 15)
    else:
        y_shape, strides, other, where, address, _readonly, owned, _owner, _stream = b
        if not mixed and (other is not dtype or owned != library or where != device):
            return ()
        y_layout = _layout(y_shape, strides)
        key = (kind, device[1], dtype, shape, layout, start & 15, y_shape, y_layout, address & 15, start == address)
    if out is not None:
        shape, strides, other, where, address, _readonly, owned, _owner, _stream = out
        if not mixed and (other is not result or owned != library or where != device):
            return ()
        key = (key, shape, _layout(shape, strides), address & 15)
    return key


@lru_cache(maxsize=1024)
def _layout(shape: Shape, strides: tuple[int, ...]) -> tuple[int, ...] | bool:
    """Return the strides, or True where elements are packed row by row, as torch's ``is_contiguous`` does.

    The strides of packed elements may be omitted: they follow from the shape, but for those of dimensions with one
    element, which do not matter.
    """
    pairs = zip(shape, strides, packed_strides(shape), strict=True)
    return strides if 0 not in shape and any(own != step and extent != 1 for extent, own, step in pairs) else True


def _goes_with(bias: Operand, a: Operand, operation: Operation) -> bool:
    """Tell whether a bias is of A's library, on its device and, unless it is something else, of its type."""
    alike = bias.dtype is a.dtype or operation.third != "bias"
    return alike and bias.library == a.library and bias.device == a.device


def _sharing(operand: Operand | None, out: Operand | None) -> tuple[int, int]:
    """Return the range of distances in bytes from an operand to the result in which they share memory."""
    if operand is None or out is None:
        return 0, 0
    (first, last), (out_first, out_last) = _reach(operand), _reach(out)
    return first - out_last, last - out_first


def _reach(operand: Operand) -> tuple[int, int]:
    """Return start and end of an operand's memory, in bytes from its address."""
    if not operand.nbytes:
        return 0, 0
    low, high = bounds(operand)
    return low * operand.dtype.itemsize, (high + 1) * operand.dtype.itemsize
