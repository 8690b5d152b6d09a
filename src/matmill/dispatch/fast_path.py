"""The fast path: a call with torch tensors on a GPU that repeats a signature goes straight to its plan.

The signature is built from the tensors themselves, without operands, and looked up in
:mod:`matmill.dispatch.plan_cache`. If it is not there, the call takes the checked path, which reads arrays of every
library, checks everything, explains errors, and adds to the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from matmill.dispatch import plan_cache
from matmill.dispatch.validate import Operation, Options
from matmill.dtypes import PRODUCTS, DType
from matmill.plan import Enqueue


class _Torch:
    """The functions of torch that the fast path uses, bound by :meth:`enable`: matmill does not import torch."""

    __slots__ = (
        "byte",
        "classes",
        "current_stream",
        "dtypes",
        "empty_like",
        "forward_ad",
        "increment_version",
        "inferring",
        "recording",
        "tracing",
    )

    byte: Any
    classes: frozenset[type]
    current_stream: Callable[[int], int]
    dtypes: Mapping[Any, DType]
    empty_like: Callable[[Any], Any]
    forward_ad: Any
    increment_version: Callable[[tuple[Any, ...]], None]
    inferring: Callable[[], bool]
    recording: Callable[[], bool]
    tracing: Callable[[], bool]

    def __init__(self) -> None:
        self.classes = frozenset()

    def enable(self) -> None:
        """Bind torch's functions. Sets ``classes`` last: that enables the path."""
        torch = sys.modules["torch"]
        self.byte = torch.uint8
        self.current_stream = torch._C._cuda_getCurrentRawStream  # noqa: SLF001 — see matmill.arrays.streams
        self.dtypes = {getattr(torch, name): dtype for name, dtype in PRODUCTS.items()}
        self.empty_like = torch.empty_like
        self.forward_ad = torch.autograd.forward_ad
        # Called by the public `torch.autograd.graph.increment_version`, half of whose 0.2 µs goes into type checks.
        self.increment_version = torch._C._increment_version  # noqa: SLF001 — see above
        self.inferring = torch.is_inference_mode_enabled
        self.recording = torch.is_grad_enabled
        self.tracing = torch._C._is_tracing  # noqa: SLF001 — what the public `torch.jit.is_tracing` calls
        self.classes = frozenset({torch.Tensor, torch.nn.Parameter})


#: Options of a call by the names of its lazy conjugates.
_CONJUGATES = {names: Options(conjugates=names) for names in ("a", "b", "ab")}
#: Shared by the process; enabled after the checked path has answered the first call with torch tensors.
torch = _Torch()


def repeat(operation: Operation, x: Any, y: Any, out: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 — a function called costs 2% of the whole
    """Return the result of a call whose signature is in the cache and whose addresses pass the checks, else None.

    ``operation`` brings the scalars, and ``y`` is None for an operation on one array. Calls with any other argument
    take the checked path.
    """
    classes = torch.classes
    if type(x) not in classes:
        return None
    try:
        device, dtype, a = x.get_device(), x.dtype, x.data_ptr()
        if not x.is_cuda or (x.requires_grad and torch.recording()) or x.is_neg() or not a or torch.tracing():
            return None
        if torch.forward_ad._current_level >= 0:  # noqa: SLF001 — torch has no public name for it
            return None  # tensors may have tangents
        # As in `plan_cache.signature`.
        element = torch.dtypes[dtype]
        lazy = element.part is not None  # complex tensors may be lazy conjugates
        conjugates = "a" if lazy and x.is_conj() else ""
        if y is None:
            b = 0
            key: plan_cache.Signature = (
                (operation, _CONJUGATES[conjugates], None) if conjugates else operation,
                device,
                element,
                x.shape,
                x.is_contiguous() or x.stride(),
                a & 15,
            )
        else:
            if (
                type(y) not in classes
                or not y.is_cuda
                or y.get_device() != device
                or y.dtype is not dtype
                or (y.requires_grad and torch.recording())
                or y.is_neg()
            ):
                return None
            b = y.data_ptr()
            if not b:
                return None
            if lazy and y.is_conj():
                conjugates += "b"
            key = (
                (operation, _CONJUGATES[conjugates], None) if conjugates else operation,
                device,
                element,
                x.shape,
                x.is_contiguous() or x.stride(),
                a & 15,
                y.shape,
                y.is_contiguous() or y.stride(),
                b & 15,
                a == b,
            )
        if out is not None:
            if (
                type(out) not in classes
                or not out.is_cuda
                or out.get_device() != device
                or out.dtype is not dtype
                or (out.requires_grad and torch.recording())
                or out.is_neg()
                or (lazy and out.is_conj())
            ):
                return None
            d = out.data_ptr()
            if not d:
                return None
            key = (key, out.shape, out.is_contiguous() or out.stride(), d & 15)
        call = plan_cache.calls[key]
        if conjugates and x.is_conj():
            x = x.conj()  # torch would copy a lazy conjugate to make an empty tensor like it
        if out is None:
            # A function in a local variable; called as a method, it would take 20 ns more.
            empty_like = torch.empty_like
            out = empty_like(y) if call.like_y else x.new_empty(call.shape)
            d = out.data_ptr()
            if d & 15 or not d:
                return None
        elif call.x_low < d - a < call.x_high or (call.y_low < d - b < call.y_high and not (call.may_be_y and b == d)):
            return None
        elif not out.is_inference():
            increment_version = torch.increment_version
            increment_version((out,))
        elif not torch.inferring():
            return None
    # Respectively: a new signature or element type; a layout without strides or memory; torch before 2.5, whose
    # increment_version takes one tensor.
    except (KeyError, RuntimeError, TypeError):
        return None
    if call.workspace:
        return out if _enqueued_in_workspace(call, call.enqueue, x, device, (a, b, 0, d, 0)) else None
    current_stream = torch.current_stream
    call.enqueue((a, b, 0, d, 0, 0, 0), current_stream(device))
    return out


class Launcher:
    """A product of plain torch tensors on one GPU, all of one layout: only addresses change from call to call.

    ``addend`` is a bias, (n,) or (1, n), or None, or a C of the result's shape.
    """

    __slots__ = ("_biased", "_call", "_device", "_enqueue")

    def __init__(self, call: plan_cache.PreparedCall, device: int, *, biased: bool, added: bool) -> None:
        self._call, self._device, self._biased = call, device, biased
        self._enqueue = call.plan.bound(1.0, 1.0) if added else call.enqueue

    def __call__(self, x: Any, y: Any, addend: Any, out: Any = None) -> Any:
        """Return the product, or None where an address is not on 16 bytes, or there is no memory for a workspace.

        The tensors have the layouts, type and GPU that the call was prepared for: this is not checked.
        """
        call = self._call
        if out is None:
            out = x.new_empty(call.shape)
        a, b, d = x.data_ptr(), y.data_ptr(), out.data_ptr()
        added = 0 if addend is None else addend.data_ptr()
        if (a | b | d | added) & 15:
            return None
        c, bias = (0, added) if self._biased else (added, 0)
        if call.workspace:
            return out if _enqueued_in_workspace(call, self._enqueue, x, self._device, (a, b, c, d, bias)) else None
        current_stream = torch.current_stream
        self._enqueue((a, b, c, d, 0, 0, bias), current_stream(self._device))
        return out


def _enqueued_in_workspace(
    call: plan_cache.PreparedCall, enqueue: Enqueue, x: Any, device: int, slots: tuple[int, int, int, int, int]
) -> bool:
    """Enqueue a call that needs a workspace on torch's current stream, for the addresses of A, B, C, D and a bias.

    Returns False where there is no memory for the workspace.
    """
    current_stream = torch.current_stream
    stream = current_stream(device)
    stream_buffers = call.stream_buffers
    workspace, counter = stream_buffers(stream)
    lent = None  # keeps borrowed memory alive until the launches are enqueued
    if not workspace:
        try:
            lent = x.new_empty(call.workspace, dtype=torch.byte)
        except RuntimeError:  # out of memory: the checked path raises a better message
            return False
        workspace = lent.data_ptr()
    a, b, c, d, bias = slots
    enqueue((a, b, c, d, workspace, counter, bias), stream)
    return True
