"""Products that compiled programs call: Inductor's generated code hands over operands and the buffer to write to.

A product of a layout that was met before costs the host a lookup and a launch. Nothing here knows Inductor: what it
has compiled goes on as it is after :func:`~matmill.torch.disable`.
"""

from __future__ import annotations

from typing import Any

import torch

from matmill.torch.decide import Decider, Decision, Product, why_torch
from matmill.torch.gradients import decider
from matmill.torch.schemas import OUT

_MATMUL_OUT = OUT["matmul"]
_aten = torch.ops.aten  # whose operators nobody replaces
#: The most layouts that are remembered. A program with more, of lengths that vary, meets them again.
_MOST_LAYOUTS = 4096

#: What answers a product, by function, layouts and options.
_ANSWERS: dict[tuple[object, ...], Decision] = {}
#: The decisions that count the products, if a session is on or was.
_counting: list[Decider] = []


def count_in(decisions: Decider) -> None:
    """Count products in these decisions from now on, for the report."""
    if _counting != [decisions]:
        _counting[:] = [decisions]
        _ANSWERS.clear()


def mm(a: Any, b: Any, *, precision: str | None = None, batch_invariant: bool = False, out: Any) -> None:
    """Write ``a @ b`` to ``out``, for two matrices, or for two batches of them."""
    if batch_invariant:
        _decisions().device.batch_invariant(a, b, None, precision, out)
        return
    key = (a.shape, a.stride(), b.shape, b.stride(), out.stride(), a.dtype, a.get_device(), precision)
    answer = _ANSWERS.get(key) or _met(key, Product(a, b, None, (False, False), by_torch, out=target(out)), precision)
    if Decider.launch(answer, a, b, None, out) is None:
        (_aten.mm if a.dim() == 2 else _aten.bmm)(a, b, out=out)


def addmm(added: Any, a: Any, b: Any, *, precision: str | None = None, batch_invariant: bool = False, out: Any) -> None:
    """Write ``added + a @ b`` to ``out``, for a row, a row that is repeated, or what has the result's shape."""
    if batch_invariant:
        _decisions().device.batch_invariant(a, b, unrepeated(added), precision, out)
        return
    key = (
        *(a.shape, a.stride(), b.shape, b.stride(), added.shape, added.stride()),
        *(out.stride(), a.dtype, a.get_device(), precision),
    )
    answer = _ANSWERS.get(key) or _met(
        key, Product(a, b, unrepeated(added), (False, False), by_torch, out=target(out)), precision
    )
    if Decider.launch(answer, a, b, added, out) is None:
        (_aten.addmm if a.dim() == 2 else _aten.baddbmm)(added, a, b, out=out)


def matmul(
    a: Any,
    b: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    out_dtype: Any = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any,
) -> None:
    """Write ``activation(a @ b + bias)`` to ``out``: the operator ``torch.ops.matmill.matmul``."""
    bias_layout = None if bias is None else (bias.shape, bias.stride())
    key = (
        *(a.shape, a.stride(), b.shape, b.stride(), bias_layout),
        *(out.stride(), a.dtype, a.get_device(), activation, out_dtype, precision),
    )
    if batch_invariant:
        options = {"activation": activation, "out_dtype": out_dtype, "precision": precision}
        _MATMUL_OUT(a, b, bias, **options, batch_invariant=True, out=out)
        return
    answer = _ANSWERS.get(key)
    if answer is None and min(a.dim(), b.dim()) > 1 and out.dtype is a.dtype and (bias is None or _is_row(bias)):
        product = Product(a, b, bias, (False, False), by_torch, activation, out=target(out))
        answer = _met(key, product, precision) if why_torch(product) is None else None
    if answer is None or Decider.launch(answer, a, b, bias, out) is None:
        _MATMUL_OUT(a, b, bias, activation=activation, out_dtype=out_dtype, precision=precision, out=out)


def by_torch(a: Any, b: Any, addend: Any) -> Any:
    """Compute ``a @ b + addend`` by torch."""
    if addend is None:
        return (_aten.mm if a.dim() == 2 else _aten.bmm)(a, b)
    return (_aten.addmm if a.dim() == 2 else _aten.baddbmm)(addend, a, b)


def target(out: Any) -> Any:
    """Return the buffer where its layout matters: a packed one is what a kernel writes anyway."""
    return None if out.is_contiguous() else out


def unrepeated(added: Any) -> Any:
    """Return the row of which a matrix consists, without its repetitions, or the tensor as it is."""
    return added[0] if added.dim() == 2 and added.stride(0) == 0 else added


def _is_row(bias: Any) -> bool:
    return bool(bias.dim() == 1 or bias.shape[0] == 1)


def _decisions() -> Decider:
    return _counting[0] if _counting else decider(None)


def _met(key: tuple[object, ...], product: Product, precision: str | None) -> Decision:
    """Return what answers a product of a new layout: its decision, or matmill's kernel, which the compiler chose."""
    decisions = _decisions()
    decided = precision == decisions.precision(product.a)
    known = decisions.decisions.get(product.layout) if decided else None
    answer = known if known is not None and known.run is not None else decisions.ours(product, precision)
    if answer.run is not None or not decisions.device.capturing():
        if len(_ANSWERS) >= _MOST_LAYOUTS:
            _ANSWERS.clear()
        _ANSWERS[key] = answer
    return answer
