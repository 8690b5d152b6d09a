"""Pairs of float32 matrices whose products are hard to sum: bias, cancellation, wide ranges, pieces at their limits."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.precision import deepest

Array = NDArray[Any]
Pair = tuple[Array, Array]
Generator = np.random.Generator
#: Twice the bit to which a tensor core truncates beside 1, and the same five times, less a little.
_TWO_BITS, _FIVE_BITS = 2.0**-24 * (1 - 2.0**-11), 5 * 2.0**-25 * (1 - 2.0**-11)
#: Factors of terms of which each product of tf32 pieces loses almost a bit beside 1, and those of one term among seven
#: of these, after which the sum of a group loses three bits more.
_SEVEN = float.fromhex("0x1.494dc2p-6"), float.fromhex("0x1.2992a2p-6")
_EIGHTH = float.fromhex("0x1.349434p-6"), float.fromhex("0x1.f9cd44p-6")


def matrices(kind: str, m: int, k: int, n: int, seed: int = 0) -> Pair:
    """Return A (m, k) and B (k, n) of a kind of :data:`KINDS`, packed by rows; k >= 65."""
    a, b = KINDS[kind](np.random.default_rng(seed), m, k, n)
    return np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)


def _both(draw: Callable[[Generator, tuple[int, int]], Array]) -> Callable[[Generator, int, int, int], Pair]:
    """Return a kind whose matrices are drawn alike."""
    return lambda rng, m, k, n: (draw(rng, (m, k)), draw(rng, (k, n)))


def _spread(phi: float) -> Callable[[Generator, int, int, int], Pair]:
    return _both(lambda rng, shape: (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape)))


def _signs(rng: Generator, m: int, k: int, n: int) -> Pair:
    """Return terms of alternating signs."""
    return 1 + rng.random((m, k)), (1 + rng.random((k, n))) * (-1.0) ** np.arange(k)[:, None]


def _huge(rng: Generator, m: int, k: int, n: int) -> Pair:
    """Return one term that is larger than all others together."""
    a, b = rng.random((m, k)), rng.random((k, n))
    a[np.arange(m), rng.integers(0, k, m)] = 2.0**20
    return a, b


def _below_one(rng: Generator, m: int, k: int, n: int) -> Pair:
    """Return 1 and then positive terms so small that each loses bits beside it."""
    a, b = ((1 + rng.random(shape)) * 2.0**-7 for shape in ((m, k), (k, n)))
    a[:, 0] = b[0] = 1
    return a, b


def _truncated(_: Generator, m: int, k: int, n: int) -> Pair:
    """Return 1 and then terms that lose half of themselves beside it, and leave a sum that loses more."""
    terms = np.where(np.arange(k) % 8 == 7, _FIVE_BITS, _TWO_BITS)
    a, b = np.full((m, k), 2.0**-12), np.broadcast_to(terms[:, None] * 2.0**12, (k, n)).copy()
    a[:, 0] = b[0] = 1
    return a, b


def _truncated_pieces(_: Generator, m: int, k: int, n: int) -> Pair:
    """Return 1 and then terms of which each product of pieces loses almost a bit beside it."""
    a, b = (np.where(np.arange(k) % 8 == 7, *pair) for pair in zip(_EIGHTH, _SEVEN, strict=True))
    a[0] = b[0] = 1
    return np.tile(a, (m, 1)), np.tile(b[:, None], n)


def _scaled(rng: Generator, m: int, k: int, n: int) -> Pair:
    """Return rows of A and columns of B of very different sizes."""
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return a * 2.0 ** rng.integers(-40, 40, (m, 1)), b * 2.0 ** rng.integers(-40, 40, n)


def _cancelling(rng: Generator, m: int, k: int, n: int) -> Pair:
    """Return sums whose second half is their first one with the other sign, so that next to nothing is left."""
    a, b, half = rng.standard_normal((m, k)), rng.standard_normal((k, n)), k // 2
    a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]
    return a, b


def _tiny_pairs(rng: Generator, m: int, k: int, n: int) -> Pair:
    """Return matrices whose largest elements meet zeros, so that products of the tiniest are all there is."""
    a, b = (2.0**-40 * (1 + rng.integers(0, 2, shape)) for shape in ((m, k), (k, n)))
    a[:, :2], b[:2] = [1, 0], [[0], [1]]
    return a, b


def _misaligned(scale: Callable[[int], float]) -> Callable[[Generator, int, int, int], Pair]:
    """Return a kind whose tiny element of A, ``scale(k)`` of the largest, meets B's largest one, with few others.

    As a subnormal number of float16 it has the exponent of larger ones, so that the terms beside it lose more bits.
    """

    def draw(_: Generator, m: int, k: int, n: int) -> Pair:
        a, b = np.full((m, k), 2.0**-14 * (1 + 127 * 2.0**-10)), np.full((k, n), 2.0**-26 * (1 + 2.0**-10))
        a[:, :2], b[:2] = [1, scale(k)], [[0], [1]]
        a[:, 16:] = 0
        return a, b

    return draw


#: Kinds of matrices: functions of a generator and m, k, n.
KINDS: dict[str, Callable[[Generator, int, int, int], Pair]] = {
    "ones": _both(lambda _, shape: np.ones(shape)),
    "positive": _both(lambda rng, shape: rng.random(shape)),
    "alternating signs": _signs,
    "one huge term": _huge,
    "terms below 1": _below_one,
    "truncated": _truncated,
    "truncated pieces": _truncated_pieces,
    **{f"spread {phi}": _spread(phi) for phi in range(5)},
    "rows and columns of any size": _scaled,
    "elements of any size": _both(lambda rng, shape: rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 13, shape)),
    "cancelling": _cancelling,
    # Of 1 + 4093 * 2**-23 the first piece leaves almost 2**-11, and the second one, in float16, 2**-23 more.
    "large second pieces": _both(lambda rng, shape: 1 + rng.choice([4093, 4095], shape) * 2.0**-23),
    "tiny pairs": _tiny_pairs,
    "misaligned": _misaligned(lambda _: 2.0**-38),
    "as deep as is taken": _misaligned(lambda k: 2.0**-28 / 2 ** int(log2(deepest(k)))),
    "subnormal sums": _both(lambda rng, shape: rng.standard_normal(shape) * 2.0**-70),
    "subnormal elements": lambda rng, m, k, n: (
        rng.integers(-(2**23), 2**23, (m, k)) * 2.0**-149,
        rng.standard_normal((k, n)) * 2.0**60,
    ),
    # These have no first piece of tf32.
    "least elements": lambda rng, m, k, n: (
        rng.integers(1, 2**12, (m, k)) * 2.0**-149,
        (1 + rng.random((k, n))) * 2.0**60,
    ),
    "few subnormal elements": lambda rng, m, k, n: (
        rng.standard_normal((m, k)) * 2.0 ** rng.integers(-149, 0, (m, k)),
        rng.standard_normal((k, n)),
    ),
}
