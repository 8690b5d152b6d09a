"""Products of groups as torch's operators: grouped_mm, jagged tensors and lists, with derivatives.

The gradients of a product of groups are products of groups: of terms for one of rows, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from matmill import ops
from matmill.errors import ArgumentError
from matmill.torch.schemas import LIBRARY
from matmill.torch.states import PLAIN, differentiated, observed

LIBRARY.define("grouped_mm(Tensor a, Tensor b, Tensor offsets) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_GROUPED_MM: Any = torch.ops.matmill.grouped_mm.default


def grouped_mm(a: Any, b: Any, offsets: Any) -> Any:
    """Return the products of groups that follow each other in one tensor, as :func:`matmill.grouped_mm`.

    ``a`` (rows, k) with ``b`` (groups, k, n) gives (rows, n), ``a`` (groups, m, k) with ``b`` (k, columns) gives
    (m, columns), and ``a`` (m, terms) with ``b`` (terms, n) gives (groups, m, n). Group g ends at ``offsets[g]``, int32
    or int64 on the device of ``a``, which the host does not read. Differentiable in ``a`` and ``b``, any number of
    times, and an operator for ``torch.compile``. Rows that no group has are 0, and so are their gradients.

    >>> a, b = torch.ones(3, 2), torch.stack([torch.eye(2), 2 * torch.eye(2)])
    >>> grouped_mm(a, b, torch.tensor([1, 3]))
    tensor([[1., 1.],
            [2., 2.],
            [2., 2.]])
    """
    tensors = a, b, offsets
    if not is_compiling() and PLAIN.issuperset(map(type, tensors)) and not differentiated(*tensors) and not observed():
        return ops.grouped_mm(a, b, offsets)
    return _GROUPED_MM(a, b, offsets)


def _empty(a: Any, b: Any, offsets: Any) -> Any:
    """Return a result without values, for tensors without memory."""
    if a.dim() == b.dim():
        return a.new_empty((offsets.shape[0], a.shape[0], b.shape[1]))
    return a.new_empty((a.shape[-2], b.shape[-1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001 — torch's signature
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b, offsets = ctx.saved_tensors
    to_a = _GROUPED_MM(grad, b.mT, offsets) if ctx.needs_input_grad[0] else None
    to_b = _GROUPED_MM(a.mT, grad, offsets) if ctx.needs_input_grad[1] else None
    return to_a, to_b, None


def of_groups(a: Any) -> bool:
    """Tell whether a product has several matrices as ``a``: a list of them, or a nested tensor of them."""
    return type(a) in {list, tuple} or (getattr(a, "is_nested", False) is True and a.dim() == 3)


def matmul(a: Any, b: Any, **options: Any) -> Any:
    """Return the products of lists, or of a jagged tensor.

    Raises :class:`~matmill.errors.ArgumentError` for any of the ``options`` of a single product that is not None.
    """
    for argument, value in options.items():
        if value is not None:
            raise ArgumentError(
                argument=argument,
                got=repr(value) if isinstance(value, str | bool) else type(value).__name__,
                wanted="no such argument for a product of lists or of a jagged tensor",
                fix=f"Omit {argument}=, and apply it to each product.",
            )
    return matmul_lists(a, b) if type(a) in {list, tuple} else jagged_matmul(a, b)


def jagged_matmul(a: Any, b: Any) -> Any:
    """Return ``a @ b`` of a jagged tensor (groups, rows of each, k), as a jagged tensor with the same rows.

    ``b`` is (groups, k, n), or (k, n) for all. Raises :class:`~matmill.errors.ArgumentError` for other tensors.
    """
    jagged = a.layout is torch.jagged and a._ragged_idx == 1  # noqa: SLF001 — torch has no public name
    if not jagged or a.lengths() is not None or b.is_nested:
        raise ArgumentError(
            argument="a, b",
            got="a nested tensor of another form than a jagged (groups, rows, k) without holes, or two of them",
            wanted="a jagged tensor whose rows differ, times a strided one",
            fix="Use lists of matrices: matmul(list(a.unbind()), ...).",
        )
    values, offsets = a.values(), a.offsets()
    product = grouped_mm(values, b, offsets[1:]) if b.dim() == 3 else values @ b
    return torch.nested.nested_tensor_from_jagged(product, offsets)


class Lists(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """The products of two lists of matrices, the first half and the second half of the arguments."""

    @staticmethod
    def forward(*tensors: Any) -> tuple[Any, ...]:
        """Return a product of each pair."""
        half = len(tensors) // 2
        return tuple(ops.matmul(tensors[:half], tensors[half:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 — torch's signature
        """Save the factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Return the gradients of both lists, each by products of lists."""
        half = len(grads)
        a, b, needed = ctx.saved_tensors[:half], ctx.saved_tensors[half:], ctx.needs_input_grad
        none = (None,) * half
        to_a = matmul_lists(grads, [x.mH for x in b]) if any(needed[:half]) else none
        to_b = matmul_lists([x.mH for x in a], grads) if any(needed[half:]) else none
        return (*to_a, *to_b)


def matmul_lists(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """Return the products of two lists of matrices, as :func:`matmill.matmul`, differentiable."""
    if len(a) == len(b) and differentiated(*a, *b):
        return list(Lists.apply(*a, *b))
    return ops.matmul(list(a), list(b))


def register() -> None:
    """Register the operator with torch's dispatcher."""
    for key in ("CPU", "CUDA"):
        LIBRARY.impl("grouped_mm", ops.grouped_mm, key)
    torch.library.register_fake("matmill::grouped_mm", _empty, lib=LIBRARY)
    torch.library.register_autograd("matmill::grouped_mm", _gradients, setup_context=_save, lib=LIBRARY)
