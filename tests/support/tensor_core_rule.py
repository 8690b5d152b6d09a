"""What a tensor core computes, one element at a time in exact arithmetic: the rule without the emulator's haste."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from matmill.emulator.arith.tensor_core import Rule


def exponent(value: Fraction, least: int) -> int:
    """Return ``floor(log2 |value|)`` of a number that is not 0, at least ``least``."""
    size = abs(value)
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return max(guess if size >= Fraction(2) ** guess else guess - 1, least)


def truncated(value: Fraction, power: int) -> Fraction:
    """Return the value truncated toward zero to a multiple of 2**power."""
    return math.trunc(value / Fraction(2) ** power) * Fraction(2) ** power


def sum_of_products(a: Sequence[float], b: Sequence[float], c: float, rule: Rule) -> float:
    """Return ``c`` and all products, group after group; the result is a float32 or float16 number."""
    for first in range(0, len(a), rule.group):
        some = slice(first, first + rule.group)
        c = _group(a[some], b[some], c, rule)
    return c


def _group(a: Sequence[float], b: Sequence[float], c: float, rule: Rule) -> float:
    plain = sum((x * y for x, y in zip(a, b, strict=True)), c)
    if not math.isfinite(plain):
        return plain
    terms = [
        (Fraction(x) * Fraction(y), exponent(Fraction(x), rule.least) + exponent(Fraction(y), rule.least))
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    if c:
        terms.append((Fraction(c), exponent(Fraction(c), rule.least_sum)))
    largest = max([power for _, power in terms] + [rule.floor])
    total = sum((truncated(value, largest - rule.kept) for value, _ in terms), Fraction(0))
    if not total:
        return 0.0
    if rule.half:
        with np.errstate(over="ignore"):
            return float(np.float16(float(total))) or 0.0
    kept = truncated(total, exponent(total, rule.least_sum) - rule.fraction)
    return float(kept) if abs(kept) < 2**128 else math.copysign(math.inf, total)
