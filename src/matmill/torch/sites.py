"""Products that a function of torch has met, by their shapes, with those of their gradients, all decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import torch

from matmill.torch.decide import Decider, Decision, Product, by_torch
from matmill.torch.states import direct, tf32

#: The least seconds that matmill must save: in a product without gradients, which costs the host as much as torch's,
#: and with gradients in a captured graph, which costs it nothing.
LEAST_SECONDS = 5e-7

#: The tensors (a, b, addend) of a product.
Operands: TypeAlias = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Function:
    """A function of torch that computes products: where it is, and the order of its tensors.

    ``ranks`` are the dimensions that its two operands have, 0 for any. ``transposed`` says that the second one enters
    transposed. ``original`` is torch's own.
    """

    owner: Any
    name: str
    original: Callable[..., Any]
    ranks: tuple[int, int] = (0, 0)
    transposed: bool = False
    added: bool = False

    @property
    def inherited(self) -> bool:
        """True if the owner has it from a base class."""
        return isinstance(self.owner, type) and self.name not in vars(self.owner)

    def by_torch(self, a: Any, b: Any, addend: Any) -> Any:
        """Compute the product in torch's own way."""
        if self.transposed:
            return self.original(a, b, addend)
        return self.original(addend, a, b) if self.added else self.original(a, b)


def _left_transposed(a: Any, b: Any, addend: Any) -> Any:
    return by_torch(a.mT, b, addend)


def _right_transposed(a: Any, b: Any, addend: Any) -> Any:
    return by_torch(a, b.mT, addend)


@dataclass(slots=True, eq=False)
class Site:
    """A product ``a @ b + addend`` of one function of torch, and those of its gradients.

    ``decisions`` are on the product and on the gradients of a and b, None for those that are not taken. ``left`` says
    that all of them are torch's; ``calls`` counts the function's calls then. ``packed`` says that operands and result
    were packed when they were decided: for such operands a decision need not be looked up. ``signature`` is the GPU's
    index and the element type, ``rounded`` whether torch might round float32 to tf32, ``recorded`` whether gradients
    are recorded. ``gain`` are the seconds that matmill saves on the GPU in a call with its gradients, infinite where
    nothing was measured.
    """

    decider: Decider
    function: Function
    decisions: tuple[Decision | None, Decision | None, Decision | None]
    left: bool
    packed: bool
    signature: tuple[int, Any]
    rounded: bool
    recorded: bool = False
    gain: float = 0.0
    calls: int = 0

    @staticmethod
    def of_torch(decider: Decider, function: Function, operands: Operands) -> Site:
        """Return the site of a product that is not decided, but torch's."""
        a = operands[0]
        signature = a.get_device(), a.dtype
        return Site(decider, function, (None, None, None), left=True, packed=False, signature=signature, rounded=False)

    def fits(self, a: Any, b: Any, addend: Any) -> bool:
        """Tell whether tensors of the site's shapes are where, and of the type, that it was decided for."""
        device, dtype = self.signature
        fits = a.get_device() == b.get_device() == device and a.dtype is b.dtype is dtype
        if addend is not None:
            fits = fits and addend.get_device() == device and addend.dtype is dtype and not addend.is_neg()
        if dtype is torch.float32 and tf32() is not self.rounded:
            return False
        if dtype.is_complex and (_recorded(a, b, addend) or _conjugated(a, b, addend)):
            return False
        return fits and not a.is_neg() and not b.is_neg()

    def answer(self, a: Any, b: Any, addend: Any) -> Any:
        """Return the product, recorded where a gradient is wanted."""
        return Recorded.apply(a, b, addend, self) if _recorded(a, b, addend) else self.product(a, b, addend)

    def product(self, a: Any, b: Any, addend: Any) -> Any:
        """Return the product."""
        function, (decision, _to_left, _to_right) = self.function, self.decisions
        packed = self.packed and a.is_contiguous() and b.is_contiguous() and (addend is None or addend.is_contiguous())
        product = Product(a, b, addend, (False, function.transposed), function.by_torch)
        if decision is None or not packed:
            return self.decider.answer(product)
        result = self.decider.launch(decision, a, b, addend)
        return self.decider.otherwise(product) if result is None else result

    def to_left(self, grad: Any, b: Any) -> Any:
        """Return the gradient of a."""
        return self._gradient(self.decisions[1], (grad, b), lambda: left_gradient(self.function, grad, b))

    def to_right(self, grad: Any, a: Any, *, matrix: bool) -> Any:
        """Return the gradient of b, a ``matrix`` or not."""
        pair = (grad, a) if self.function.transposed else (a, grad)
        return self._gradient(self.decisions[2], pair, lambda: right_gradient(self.function, grad, a, matrix=matrix))

    def _gradient(self, decision: Decision | None, pair: tuple[Any, Any], product: Callable[[], Product]) -> Any:
        """Return a gradient's product, from torch where it is differentiated again or observed."""
        x, y = pair
        if not direct(x, y):
            return product().compute()
        if decision is None or not (self.packed and x.is_contiguous() and y.is_contiguous()):
            return self.decider.answer(product())
        result = self.decider.launch(decision, x, y, None)
        return self.decider.otherwise(product()) if result is None else result


def _conjugated(*tensors: Any) -> bool:
    """Tell whether the values of any tensor are the conjugates of what is in its memory."""
    return any(x is not None and x.is_conj() for x in tensors)


def _recorded(a: Any, b: Any, addend: Any) -> bool:
    """Tell whether autograd records a product of these tensors."""
    wanted = a.requires_grad or b.requires_grad or (addend is not None and addend.requires_grad)
    return wanted and torch.is_grad_enabled()


def left_gradient(function: Function, grad: Any, b: Any) -> Product:
    """Return the product that is the gradient of a."""
    transposed = function.transposed
    return Product(grad, b, None, (False, not transposed), by_torch if transposed else _right_transposed)


def right_gradient(function: Function, grad: Any, a: Any, *, matrix: bool) -> Product:
    """Return the product that is the gradient of b, in its layout: one, however many batches share a ``matrix``."""
    if matrix:
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    left, right = (grad, a) if function.transposed else (a, grad)
    return Product(left, right, None, (True, False), _left_transposed)


def meet(decider: Decider, function: Function, operands: Operands) -> Site | None:
    """Decide a product, and those of its gradients if they are recorded.

    Returns None where it is not on a GPU, or cannot be decided now.
    """
    a, b, addend = operands
    given = [x for x in operands if x is not None]
    if not all(decider.device.serves(x) and x.layout is torch.strided and not x.is_neg() for x in given):
        return None
    if _conjugated(*given):
        return None
    if a.dtype.is_complex and _recorded(*operands):  # gradients would be products with conjugates
        return Site.of_torch(decider, function, operands)
    ranks = zip(function.ranks, (a.dim(), b.dim()), strict=True)
    if min(a.dim(), b.dim()) < 2 or any(rank not in {0, own} for rank, own in ranks):
        return Site.of_torch(decider, function, operands)
    product = Product(a, b, addend, (False, function.transposed), function.by_torch)
    forward = decider.decide(product)
    if forward is None:
        return None
    return _with_gradients(decider, function, operands, forward, product.compute)


def own(decider: Decider, function: Function, operands: Operands) -> Site | None:
    """Return the site of a product that matmill answers whatever the times; those of its gradients are decided.

    Returns None where these cannot be decided now, and while its kernel is being compiled. Raises the errors of
    :func:`matmill.matmul`.
    """
    a, b, addend = operands
    product = Product(a, b, addend, (False, function.transposed), function.by_torch)
    if decider.request(product) is not None:
        return None
    forward = decider.by_kernel(product, decider.precision(a), "matmill's own function")
    return _with_gradients(decider, function, operands, forward, product.compute)


def remember(sites: dict[tuple[object, ...], Site], key: tuple[object, ...], site: Site) -> None:
    """Keep a site for later calls, or if a kernel of its products is being compiled, until that has arrived."""
    sites[key] = site

    def forget() -> None:
        if sites.get(key) is site:
            sites.pop(key, None)

    for decision in filter(None, site.decisions):
        if decision.arrival is not None:
            decision.arrival.then(forget)


def _with_gradients(
    decider: Decider, function: Function, operands: Operands, forward: Decision, compute: Callable[[], Any]
) -> Site | None:
    """Return the site of a decided product, with decisions on those of its gradients if they are recorded."""
    a, b, _addend = operands
    given = [x for x in operands if x is not None]
    recorded = _recorded(*operands)
    to_a = to_b = None
    if recorded:
        with torch.no_grad():
            grad = compute()  # in place of the gradient, which has its layout
            to_a = decider.decide(left_gradient(function, grad, b)) if a.requires_grad else None
            to_b = decider.decide(right_gradient(function, grad, a, matrix=b.dim() == 2)) if b.requires_grad else None
        if (to_a is None and a.requires_grad) or (to_b is None and b.requires_grad):
            return None
    known = (forward, to_a, to_b)
    ours = [decision for decision in known if decision is not None and decision.run is not None]
    measured = all(decision.torch_seconds is not None for decision in ours)
    return Site(
        decider,
        function,
        known,
        left=not ours,
        packed=all(x.is_contiguous() for x in given),
        signature=(a.get_device(), a.dtype),
        rounded=tf32(),
        recorded=recorded,
        gain=sum(decision.gain for decision in ours) if measured else inf,
    )


class Recorded(torch.autograd.Function):  # type: ignore[misc] # torch may be absent, and is Any then
    """The product of a site with its derivative. Only what a gradient needs is saved."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, addend: Any, site: Site) -> Any:
        """Return the product."""
        needs = ctx.needs_input_grad
        ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None)
        ctx.site, ctx.matrix = site, b.dim() == 2
        ctx.addend = None if addend is None else addend.shape
        return site.product(a, b, addend)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Return the gradients of both operands and of the addend."""
        (grad,) = grads
        a, b = ctx.saved_tensors
        needs, site = ctx.needs_input_grad, ctx.site
        to_a = site.to_left(grad, b) if needs[0] else None
        to_b = site.to_right(grad, a, matrix=ctx.matrix) if needs[1] else None
        return to_a, to_b, grad.sum_to_size(ctx.addend) if needs[2] else None, None
