"""Checks that two copies of a program compute the same: gradients, and the losses of steps that move every weight."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

import torch

#: Differences that rounding explains, by element type: products are summed in other orders. Of losses, relative to the
#: largest: on the CPU, errors of two roundings in every gradient explain half of each bound, and gradients of zero
#: exceed twice the bound. Of gradients, in the norm of each parameter's: a wrong product differs by about 1, and in 16
#: bits every layer rounds its activations once more.
LOSSES = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
GRADIENTS = {"float64": 1e-9, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.2}
#: Every step of a check moves a parameter by this share of its norm. 16-bit weights round smaller steps away, larger
#: ones leave the minimum again.
_SHARE = 3e-3


def learn(parameters: Sequence[Any]) -> None:
    """Move every parameter against its gradient, whose size does not matter: 16-bit weights change too."""
    with torch.no_grad():
        for parameter in parameters:
            weight, gradient = parameter.double(), parameter.grad.double()
            rate = _SHARE * weight.norm() / gradient.norm().clamp(min=1e-30)
            parameter.copy_(weight - rate * gradient)


def losses_differ(expected: Sequence[float], actual: Sequence[float]) -> float:
    """Return the largest difference over the largest expected loss; infinity where one is not finite.

    >>> losses_differ([4.0, 2.0], [4.0, 3.0]), losses_differ([4.0, 2.0], [4.0, float("nan")])
    (0.25, inf)
    """
    if not all(map(isfinite, (*expected, *actual))):
        return inf
    return max(abs(x - y) for x, y in zip(expected, actual, strict=True)) / max(*map(abs, expected), 1e-30)


def losses_move(losses: Sequence[float]) -> float:
    """Return how far losses get from the first one, over the largest: steps that change nothing check nothing.

    >>> losses_move([4.0, 3.0, 3.5]), losses_move([4.0, 4.0])
    (0.25, 0.0)
    """
    return losses_differ(losses, [losses[0]] * len(losses))


def gradients_differ(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest relative difference of two parameters' gradients, in the norm of each; infinity for NaN.

    >>> x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    >>> x.grad, y.grad = torch.full((3,), 4.0), torch.full((3,), 3.0)
    >>> gradients_differ([x], [y]), gradients_differ([], [])
    (0.25, 0.0)
    """
    result = 0.0
    for x, y in zip(expected, actual, strict=True):
        reference = x.grad.double()
        difference = float((y.grad.double() - reference).norm() / reference.norm().clamp(min=1e-30))
        result = max(result, difference if isfinite(difference) else inf)
    return result
