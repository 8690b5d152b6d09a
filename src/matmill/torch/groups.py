"""Products with k distributed over the ranks of a process group: a local product, and one all_reduce of its sums.

Each rank multiplies its own terms of k, with the result in the accumulator's type. The sums of all ranks are added by
the group's own all_reduce (gloo on the CPU, NCCL on GPUs), then scaled, added to C and rounded, once. Nothing else
moves between ranks: m * n elements, and n * (n + 1) / 2 of a Gram matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from matmill import ops
from matmill.dispatch.validate import scalar
from matmill.dtypes import ALL, BY_TO, named, result_type, summed
from matmill.errors import ArgumentError, CollectiveError, DTypeError, ShapeError
from matmill.torch.states import differentiated

#: Gram matrices of more rows are sent whole: on two H100s, packing 2048 rows took longer than sending them whole.
_PACKED_ROWS = 512


class Pending:
    """A product in flight: its sums are being added over the ranks.

    Work that the caller enqueues meanwhile, on a GPU or the CPU, overlaps with the all_reduce. Operands may be
    overwritten at once; ``c`` and ``out`` only after :meth:`wait`.
    """

    def __init__(
        self, work: Any, failed: Callable[[], AbstractContextManager[None]], finish: Callable[[], Any]
    ) -> None:
        self._work = work
        self._failed = failed
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None

    def done(self) -> bool:
        """Tell whether the sums are complete, so that :meth:`wait` would not wait."""
        return self._finish is None or self._work is None or bool(self._work.is_completed())

    def wait(self) -> Any:
        """Return the result, or ``out`` if there is one; the same tensor on every call.

        On a GPU the current stream waits, not the host. Raises :class:`~matmill.errors.CollectiveError` if a rank did
        not take part in time.
        """
        if self._finish is not None:
            if self._work is not None:
                with self._failed():
                    self._work.wait()
            self._result, self._finish = self._finish(), None
        return self._result


class CollectiveOptions(NamedTuple):
    """The keywords of a call of :func:`matmill.torch.inner` or :func:`~matmill.torch.gram`."""

    c: Any
    alpha: float
    beta: float | None
    out: Any
    group: Any
    async_op: bool
    out_dtype: Any = None
    precision: str | None = None


def inner(e: Any, f: Any, options: CollectiveOptions) -> Any:
    """Return ``e @ f``, summed over the ranks of a group, then scaled, added to C and rounded.

    Without a group there is only this rank.
    """
    for name, x, extents in (("e", e, "m, k"), ("f", f, "k, n")):
        _check_matrix(name, x, f"({extents})")
    if e.shape[1] != f.shape[0]:
        raise ShapeError(
            argument="f",
            got=f"shape {tuple(f.shape)}",
            wanted=f"({e.shape[1]}, n): as many rows as e has columns on this rank",
            fix="Split e's columns and f's rows over the ranks at the same k.",
        )
    # Never symmetric: f may be e's transpose here and not on another rank, which would then send more data.
    return _Sums(("e", "f"), (e, f), options).over_ranks(symmetric=False)


def gram(x: Any, options: CollectiveOptions) -> Any:
    """Return ``x.mT @ x``, summed likewise; only elements on and below the diagonal are sent."""
    _check_matrix("x", x, "(k, n): rows of observations")
    return _Sums(("x", "x"), (x.mT, x), options).over_ranks(symmetric=True)


class _Sums:
    """One product: its operands on this rank, and the reduction, scaling and rounding of all ranks' sums."""

    def __init__(self, names: tuple[str, str], operands: tuple[Any, Any], options: CollectiveOptions) -> None:
        first, second = operands
        c, alpha, beta, out, group, self._async_op, out_dtype, self._precision = options
        dtype = named(str(first.dtype).removeprefix("torch."), names[0], ALL, conversion=BY_TO)
        if (c is None and beta) or (c is not None and beta is None):
            given, lacking = ("beta", "c") if c is None else ("c", "beta")
            raise ArgumentError(
                argument=given,
                got=f"{given} without {lacking}",
                wanted="c together with beta",
                fix=f"Pass {lacking}, too.",
            )
        self._shape = (first.shape[0], second.shape[1])
        wanted = result_type(out_dtype, dtype)
        result = getattr(torch, wanted.name)
        for called, x in (*zip(names, operands, strict=True), ("c", c), ("out", out)):
            _check_plain(called, x)
        for called, x in (("c", c), ("out", out)):
            _check_like(called, x, result, first.device, self._shape)
        self._operands = operands
        self._type = result
        self._accumulator = summed(dtype, wanted).accumulator
        self._c = c
        self._alpha = scalar(alpha, "alpha")
        self._beta = 0.0 if beta is None else scalar(beta, "beta")
        self._out = out
        self._group = _checked_group(group)

    def over_ranks(self, *, symmetric: bool) -> Any:
        """Return the result, or a :class:`Pending`; a symmetric product is symmetric to the bit on all ranks."""
        if self._alpha == 0:  # as in BLAS, the operands are not read; all sums are 0
            total, work = self._operands[0].new_zeros(self._shape, dtype=self._wide()), None
            sent = total
        else:
            first, second = self._operands
            wider = None if first.dtype is self._wide() else self._accumulator.name
            total = ops.matmul(first, second, out_dtype=wider, precision=self._precision)
            symmetric = symmetric and self._group is not None
            packed = symmetric and self._shape[0] <= _PACKED_ROWS
            sent = torch.take(total, _lower(self._shape[0], total.device)) if packed else total
            work = self._reduce(sent)

        def finish() -> Any:
            if sent is not total:
                return self._finished(torch.take(sent, _mirrored(self._shape[0], sent.device)))
            return self._finished(_with_lower_twice(total) if symmetric else total)

        pending = Pending(work, self._failed, finish)
        return pending if self._async_op else pending.wait()

    def _wide(self) -> Any:
        return getattr(torch, self._accumulator.name)

    def _reduce(self, sent: Any) -> Any:
        if self._group is None or not sent.numel():
            return None
        with self._failed():
            return dist.all_reduce(sent, group=self._group, async_op=True)

    @contextmanager
    def _failed(self) -> Any:
        """Convert errors of a group's backend."""
        try:
            yield
        except RuntimeError as error:
            ranks, device = dist.get_world_size(self._group), self._operands[0].device.type
            raise CollectiveError(
                argument="group",
                got=f"a failed all_reduce over {ranks} ranks: {str(error).strip().splitlines()[0]}",
                wanted="every rank of the group to take part within its timeout, with the same shapes and types",
                fix="Read the errors of the other ranks; where one has ended, start all anew, as torchrun does. "
                f"A group's backend must take tensors on {device}: gloo does on the CPU, NCCL on GPUs.",
            ) from error

    def _finished(self, total: Any) -> Any:
        """Return ``alpha * total + beta * c``, computed in the accumulator's type as in the kernels, rounded once."""
        if self._alpha not in {0, 1}:
            total = total * self._accumulator.scalar(self._alpha).item()
        if self._c is not None and self._beta != 0:
            by_c = self._accumulator.scalar(self._beta).item()
            total = total + by_c * self._c.to(total.dtype)
        return total.to(self._type) if self._out is None else self._out.copy_(total)


@lru_cache(maxsize=8)
def _lower(n: int, device: Any) -> Any:
    """Return the indices of the lower triangle of an n x n matrix, row after row."""
    rows, columns = torch.tril_indices(n, n, device=device)
    return rows * n + columns


@lru_cache(maxsize=8)
def _mirrored(n: int, device: Any) -> Any:
    """Return for each element of a symmetric n x n matrix its index in :func:`_lower`."""
    index = torch.arange(n, device=device)
    above, below = torch.minimum(index, index[:, None]), torch.maximum(index, index[:, None])
    return below * (below + 1) // 2 + above


def _with_lower_twice(total: Any) -> Any:
    """Return the symmetric matrix with the lower triangle of ``total``.

    Ranks may add the two triangles in different orders.
    """
    return torch.where(torch.ones_like(total, dtype=torch.bool).tril_(), total, total.mT)


def _check_matrix(name: str, x: Any, extents: str) -> None:
    if not isinstance(x, torch.Tensor) or x.dim() != 2:
        shown = f"shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise ShapeError(
            argument=name, got=shown, wanted=f"a tensor of two dimensions, {extents}", fix="Reshape it, or use matmul."
        )


def _check_plain(argument: str, x: Any) -> None:
    """Refuse tensors that are distributed already, and recorded derivatives."""
    if x is None:
        return
    if type(x).__name__ == "DTensor":
        raise ArgumentError(
            argument=argument,
            got="a DTensor, together with group=, c=, alpha=, beta= or async_op=",
            wanted="this rank's own tensor",
            fix=f"Omit these arguments, or pass {argument}.to_local().",
        )
    if differentiated(x):
        raise ArgumentError(
            argument=argument,
            got="a tensor of which a derivative is recorded",
            wanted="tensors without derivatives, where inner or gram sums over ranks, scales or adds",
            fix="Distribute DTensors and call it without group=, which is differentiable, or call it inside "
            "torch.no_grad().",
        )


def _check_like(argument: str, x: Any, dtype: Any, device: Any, shape: tuple[int, int]) -> None:
    """Check that C or out has the result's type, the operands' device, and the result's shape (C may broadcast)."""
    if x is None:
        return
    if x.dtype != dtype or x.device != device:
        raise DTypeError(
            argument=argument,
            got=f"{x.dtype} on {x.device}",
            wanted=f"{dtype} on {device}, as the result",
            fix=f"Convert it: {argument}.to({str(device)!r}, {dtype})." if argument == "c" else "Omit out=.",
        )
    fits = tuple(x.shape) == shape
    if argument == "c" and not fits:
        try:
            fits = tuple(torch.broadcast_shapes(x.shape, shape)) == shape
        except RuntimeError:
            fits = False
    if not fits:
        raise ShapeError(
            argument=argument,
            got=f"shape {tuple(x.shape)}",
            wanted=f"the result's {shape}",
            fix="Reshape it." if argument == "c" else "Omit out= and use the tensor that is returned.",
        )


def _checked_group(group: Any) -> Any:
    """Return the process group, of which this rank is a member."""
    if group is None:
        return None
    if hasattr(group, "get_group"):  # a DeviceMesh, which must have one dimension
        group = group.get_group()
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise ArgumentError(
            argument="group",
            got=f"{type(group).__name__} {group!r}",
            wanted="a process group of torch.distributed that this rank belongs to, or a DeviceMesh of one dimension",
            fix="Call torch.distributed.init_process_group() and pass group=torch.distributed.group.WORLD.",
        )
    return group
