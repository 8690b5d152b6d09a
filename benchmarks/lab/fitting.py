"""Least values of functions that are neither smooth nor known by a formula: a search by steps.

After R. Hooke and T. A. Jeeves, "Direct search" solution of numerical and statistical problems, Journal of the ACM
8(2), 1961: steps along each axis that make the function less are kept; their sum is tried once more; where no step
helps, steps become shorter. In a valley that runs diagonally between two creases no step along an axis helps, so that
as many steps are tried along random directions, orthogonal to each other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_SHORTER, _LONGER = 0.6, 1.5


def least(
    function: Callable[[Vector], float],
    start: Vector,
    bounds: tuple[Vector, Vector],
    *,
    step: float = 0.3,
    shortest: float = 1e-3,
    most: int = 20_000,
    seed: int = 0,
) -> tuple[Vector, float]:
    """Find a point between ``bounds`` from which no step of ``shortest`` leads lower, and the value there.

    The first steps are ``step`` long. At most about ``most`` values are computed.

    >>> low, high = np.full(2, -9.0), np.full(2, 9.0)
    >>> point, value = least(lambda x: abs(x[0] - 1) + abs(x[0] - x[1]), np.zeros(2), (low, high))
    >>> bool(np.allclose(point, 1, atol=0.01)), bool(value < 0.01)
    (True, True)
    """
    low, high = bounds
    generator, count = np.random.default_rng(seed), len(start)
    point = np.clip(start, low, high)
    value, computed = function(point), 1
    lengths = np.full(2 * count, step)
    while lengths.max() > shortest and computed < most:
        before = point
        diagonal, _ = np.linalg.qr(generator.normal(size=(count, count)))
        for at, direction in enumerate((*np.eye(count), *diagonal)):
            for sign in (1.0, -1.0):
                trial = np.clip(point + sign * lengths[at] * direction, low, high)
                result = function(trial)
                computed += 1
                if result < value:
                    point, value = trial, result
                    lengths[at] *= _LONGER
                    break
            else:
                lengths[at] *= _SHORTER
        trial = np.clip(2 * point - before, low, high)
        result = function(trial)
        computed += 1
        if result < value:
            point, value = trial, result
        # Directions that lead nowhere now may do so later: no step falls far behind the longest.
        lengths = np.maximum(lengths, lengths.max() / 20)
    return point, value
