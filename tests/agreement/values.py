"""Operands worth trying: edges of every type against each other, random bits, and midpoints of roundings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
INTEGER_EDGES = (
    0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF,
    0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000,
    0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF, 0xDEADBEEFCAFEBABE,
)  # fmt: skip
_BITS = {"f2": 16, "bf": 16, "f4": 32, "f8": 64}
_SIGNIFICAND = {"f2": 10, "bf": 7, "f4": 23, "f8": 52}
_BIAS = {"f2": 15, "bf": 127, "f4": 127, "f8": 1023}


def words(bits: int, count: int = 4096, seed: int = 0, operands: int = 3) -> list[Array]:
    """Return ``operands`` arrays of unsigned integers of ``bits`` bits.

    They are edges, small numbers, and numbers of every length.
    """
    rng = np.random.default_rng(seed)
    mask = np.uint64((1 << bits) - 1)
    edges = np.array(INTEGER_EDGES, np.uint64)
    result = []
    pairs = len(edges) ** 2
    total = max(count, 3 * pairs)
    for index in range(operands):
        length = rng.integers(0, 64, total, dtype=np.uint64)
        drawn = rng.integers(0, 1 << 64, total, dtype=np.uint64) >> length
        drawn = np.where(rng.random(total) < 0.25, ~drawn, drawn)
        both = np.repeat(edges, len(edges)) if index == 0 else np.tile(edges, len(edges))
        drawn[:pairs] = both if index < 2 else rng.choice(edges, pairs)
        # A run of small operands, for shift counts, selectors and divisors.
        drawn[pairs : 2 * pairs] = rng.integers(0, 80, pairs) if index else drawn[pairs : 2 * pairs]
        result.append((drawn & mask).astype(f"u{bits // 8}")[total - count :])
    return result


def float_edges(kind: str) -> Array:
    """List zeros, infinities, NaN, subnormals, the range's ends, and neighbours of small numbers, of both signs."""
    fraction, bias = _SIGNIFICAND[kind], _BIAS[kind]
    one, step = bias << fraction, 1
    top = (2 * bias + 1) << fraction
    positive = [0, 1, 2, (1 << fraction) - 1, 1 << fraction, (1 << fraction) + 1, 2 << fraction, top - 1, top,
                top | (1 << (fraction - 1)), one, one + step, one - step, one - (1 << fraction),
                one - (1 << fraction) - step, one - (1 << fraction) + step, one | (1 << (fraction - 1)),
                (one + (1 << fraction)) | (1 << (fraction - 2)), one + (3 << fraction)]  # fmt: skip
    # Half a unit beside powers of two where conversions to integers have their limits.
    for power in (7, 8, 15, 16, 31, 32, 63, 64):
        if power <= bias:
            positive += [((bias + power) << fraction) + d for d in (-1, 0, 1)]
    sign = 1 << (_BITS[kind] - 1)
    bits = np.array([*positive, *(p | sign for p in positive)], np.uint64)
    return bits.astype(f"u{_BITS[kind] // 8}")


def floats(kind: str, count: int = 6144, seed: int = 0, operands: int = 3) -> list[Array]:
    """Return ``operands`` arrays of floating-point bits.

    They are edges against each other, random bits, and numbers of like size.
    """
    rng = np.random.default_rng(seed)
    edges = float_edges(kind)
    word = edges.dtype
    pairs = len(edges) ** 2
    count = max(count, pairs + 2048)
    fraction, bias = _SIGNIFICAND[kind], _BIAS[kind]
    result = []
    for index in range(operands):
        bits = rng.integers(0, 1 << _BITS[kind], count, dtype=np.uint64)
        both = np.repeat(edges, len(edges)) if index == 0 else np.tile(edges, len(edges))
        bits[:pairs] = both if index < 2 else rng.choice(edges, pairs)
        near = count - 1024
        exponent = rng.integers(bias - 6, bias + 7, 1024).astype(np.uint64) << np.uint64(fraction)
        low = rng.integers(0, 1 << fraction, 1024, dtype=np.uint64)
        sign = rng.integers(0, 2, 1024, dtype=np.uint64) << np.uint64(_BITS[kind] - 1)
        bits[near:] = exponent | low | sign
        result.append(bits.astype(word))
    return result


def midpoints(dtype: type[np.floating[Any]], seed: int = 0, count: int = 2048) -> list[Array]:
    """Draw a, b, c as bits where a·b is halfway between two numbers and a far smaller c, or none, decides.

    Part of them is scaled so that the result is subnormal, or just below or above the smallest normal number.
    """
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    fraction = {4: 23, 8: 52}[kind.itemsize]
    lowest = {4: -126, 8: -1022}[kind.itemsize]
    halves = ((fraction + 1) // 2, fraction + 1 - (fraction + 1) // 2)
    a, b = (1 + np.ldexp(rng.integers(0, 1 << (h - 3), count) * 2.0 + 1, -h) for h in halves)
    sign = rng.choice([-1.0, 1.0], count)
    small = -rng.integers(fraction + 3, 3 * fraction, count)
    c = np.where(rng.random(count) < 0.2, 0.0, rng.choice([-1.0, 1.0], count) * np.ldexp(1.0, small))
    # Exponents of the product: normal, then around the smallest normal number, then deep below it.
    shift = np.where(
        np.arange(count) < count // 2, rng.integers(-20, 20, count), rng.integers(-fraction, 3, count) + lowest
    )
    first = shift // 2
    bits = f"u{kind.itemsize}"
    scaled = (np.ldexp(a * sign, first), np.ldexp(b, shift - first), np.ldexp(c, shift))
    return [x.astype(kind).view(bits) for x in scaled]


def limits(count: int = 2048, seed: int = 19) -> list[Array]:
    """Draw float64 a, b, c whose products and sums are about the subnormals or overflow; terms cancel."""
    rng = np.random.default_rng(seed)

    def significands() -> Array:
        few = 2 * np.frexp((rng.integers(8, 16, count) << rng.integers(0, 50, count)).astype(np.float64))[0]
        kinds = rng.uniform(1, 2, count), few, 1 + rng.integers(-3, 4, count) * 2.0**-52
        return np.asarray(np.choose(rng.integers(0, 3, count), kinds) * rng.choice([-1.0, 1.0], count))

    def scaled(exponent: Array) -> Array:
        return np.asarray(np.ldexp(significands(), np.clip(exponent, -1074, 1023)))

    exponent = np.concatenate([rng.integers(-1085, -1015, count // 2), rng.integers(1018, 1028, count - count // 2)])
    first = rng.integers(-1074, 1024, count)
    with np.errstate(all="ignore"):
        a, b, c = scaled(first), scaled(exponent - first), scaled(exponent + rng.integers(-60, 60, count))
        product = a * b
        cancelled = np.where(np.isfinite(product), -product, c) * (1 + rng.integers(-2, 3, count) * 2.0**-52)
        anywhere = scaled(rng.integers(-1074, 1024, count))
        c = np.choose(rng.integers(0, 4, count), (c, cancelled, anywhere, np.copysign(0.0, c)))
    return [x.view(np.uint64) for x in (a, b, c)]


def zipped(*groups: list[Array]) -> list[Array]:
    """Return the arrays of several groups, one after another."""
    return [np.concatenate(parts) for parts in zip(*groups, strict=True)]
