"""What tensor cores compute, bit for bit: terms aligned to the largest exponent, truncated, summed, truncated again.

A group of products is added to C at once; longer sums take group after group in the order of k. Of one group

1. the exponent of a product is the sum of its factors' exponents, also where their significands' product is 2 or more;
   a subnormal factor has the least exponent of its format, a zero none;
2. E is the largest exponent of the products and of C, and at least ``Rule.floor``;
3. every product (exact) and C are truncated toward zero to multiples of 2**(E - ``Rule.kept``);
4. their exact sum is truncated toward zero to ``Rule.fraction`` bits, or rounded to nearest even to float16.

Subnormals are kept. A NaN, or infinities of both signs, give NaN; else an infinity wins. An exact sum of 0 is +0.

Sources: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004), with results recorded on GPUs
(tests/golden/tensor_core.npz); for Turing Xie and others, "MMA-Sim" (arXiv 2511.10909).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.row import Row

F4 = NDArray[np.float32]
F8 = NDArray[np.float64]
I2 = NDArray[np.int16]

#: The least exponents of normal numbers.
_LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
_BYTES = {"e4m3", "e5m2"}
_HOPPER = 90
# What stands for the exponents of zeros, and of infinities and NaN: added to any other it stays apart from numbers'.
_ZERO, _SPECIAL = np.int16(-2000), np.int16(8000)
_NO_NUMBER = -1000
# For E between these, float32 holds each term exactly unless it is truncated to 0, and the quantum as a normal number.
_LOWEST, _HIGHEST = np.int16(-101), np.int16(126)
# A truncated product is below 2**27 quanta, so 32 bits hold the sum of this many.
_SUMMED = 16
# Products of a piece: with their exponents and truncated values they stay within a core's second-level cache.
_PIECE = 131072


@dataclass(frozen=True)
class Rule:
    """How tensor cores add products of one format to C of another.

    ``group`` products are added at once. ``kept`` bits below the largest exponent count, which is at least ``floor``.
    ``least`` and ``least_sum`` are the least exponents of normal factors, and of normal C. D is float16, rounded to
    nearest even, where ``half``; else float32, truncated to ``fraction`` bits.
    """

    group: int
    kept: int
    floor: int
    least: int
    least_sum: int
    fraction: int
    half: bool


def rule_of(target: str, factors: str, sums: str) -> Rule:
    """The rule of a PTX target such as "sm_90a" for factors of f16, bf16, tf32, e4m3 or e5m2 and sums of f32 or f16.

    8-bit factors have Hopper's rule everywhere, and GPUs after Hopper have Hopper's.
    """
    found = re.match(r"sm_(\d+)", target)
    hopper = found is None or int(found[1]) >= _HOPPER or factors in _BYTES
    group, kept, below = (16, 25, 7) if hopper else (8, 24, 6)
    if factors in _BYTES:
        group, kept = 32, 13
    elif factors == "tf32":
        group //= 2
    least_sum = _LEAST[sums]
    fraction = 13 if factors in _BYTES else 23
    return Rule(group, kept, least_sum - below, _LEAST[factors], least_sum, fraction, half=sums == "f16")


class Factor(NamedTuple):
    """A or B: values of its format as float32[k, ...], and their exponents (int16) as the fast path wants them."""

    values: F4
    exponents: I2


def factor(values: F4, rule: Rule) -> Factor:
    """A or B, ready for any number of products; k comes first, and the values are those of the factors' format."""
    return Factor(values, _exponents(values, rule.least))


def add_products(a: Factor, b: Factor, c: Row, out: Row, rule: Rule, buffers: Buffers) -> None:
    """``out = c + sum of a * b over k``, as a tensor core computes it.

    ``a`` and ``b`` broadcast against each other; ``c`` and ``out`` have their common shape without k, and are float32,
    or float16 where the rule says so. ``out`` may be ``c``. Fast where the last axes are long and none is broadcast.
    """
    k, *shape = np.broadcast_shapes(a.values.shape, b.values.shape)
    group = min(rule.group, k)
    rows = max(1, _PIECE * shape[0] // (group * prod(shape)))
    with np.errstate(all="ignore"):
        for row in range(0, shape[0], rows):
            left, right = (_part(x, row, rows) for x in (a, b))
            sums, piece = c[row : row + rows], out[row : row + rows]
            for first in range(0, k, group):
                some = slice(first, first + group)
                _add(Factor(*(x[some] for x in left)), Factor(*(x[some] for x in right)), sums, piece, rule, buffers)
                sums = piece


def _part(x: Factor, first: int, rows: int) -> Factor:
    """Some rows, counted along the axis after k."""
    return x if x.values.shape[1] == 1 else Factor(*(y[:, first : first + rows] for y in x))


def aligned_sum(a: F8, b: F8, c: F8, rule: Rule) -> Row:
    """``c`` (float64[n]) and one group of products ``a * b`` (float64[k, n] each), of any values: the rule as it is."""
    products = a * b
    special = products.sum(axis=0) + c
    none = -(1 << 20)
    exponents = np.where(products != 0, _exponent(a, rule.least) + _exponent(b, rule.least), none)
    largest = np.maximum(exponents.max(axis=0), np.where(c != 0, _exponent(c, rule.least_sum), none))
    quantum = np.ldexp(1.0, np.maximum(largest, rule.floor) - rule.kept)
    # Adding 0 makes a sum of -0 positive.
    total = (np.trunc(products / quantum).sum(axis=0) + np.trunc(c / quantum) + 0.0) * quantum
    total = np.where(np.isfinite(special), total, special)
    if rule.half:
        return total.astype(np.float16)
    step = np.ldexp(1.0, _exponent(total, rule.least_sum) - rule.fraction)
    return np.asarray(np.trunc(total / step) * step, np.float32)


def _exponent(x: F8, least: int) -> NDArray[np.int32]:
    return np.maximum(np.frexp(x)[1] - 1, least)


def _exponents(x: F4, least: int) -> I2:
    """The exponents of float32 values; those of subnormal, zero and special ones as the fast path wants them."""
    size = np.abs(x)
    biased = (size.view(np.int32) >> 23).astype(np.int16)
    exponents: I2 = np.maximum(biased, np.int16(least + 127)) - np.int16(127)
    exponents += (biased == np.int16(255)) * _SPECIAL
    exponents += (size == 0) * _ZERO
    return exponents


def _add(a: Factor, b: Factor, c: Row, out: Row, rule: Rule, buffers: Buffers) -> None:
    """One group of products of a piece, in float32 and int32; what does not fit there goes to :func:`aligned_sum`."""
    k, shape, count = len(a.values), out.shape, out.size

    def scratch(name: str, dtype: str, *leading: int) -> Row:
        return buffers.take(f"tensor core {name}", dtype, prod(leading) * count).reshape(*leading, *shape)

    terms, whole = scratch("terms", "f4", k + 1), scratch("whole", "i4", k + 1)
    some, total = scratch("some", "i4"), scratch("total", "f8")
    terms[k] = c
    exponents = np.add(a.exponents, b.exponents, out=scratch("exponents", "i2", k))
    largest = np.maximum(np.maximum.reduce(exponents, axis=0), _exponents(terms[k], rule.least_sum))
    clipped = np.minimum(np.maximum(largest, max(_LOWEST, np.int16(rule.floor))), _HIGHEST)
    outside = (largest > _HIGHEST) | ((largest < _LOWEST) & (largest > _NO_NUMBER))
    exact = None
    if outside.any():
        wide = (np.broadcast_to(x.values, (k, *shape))[:, outside].astype(np.float64) for x in (a, b))
        exact = aligned_sum(*wide, c[outside].astype(np.float64), rule)
    power = clipped.astype(np.int32) << 23
    np.multiply(a.values, b.values, out=terms[:k])
    np.multiply(terms, (((127 + rule.kept) << 23) - power).view(np.float32), out=terms)
    # The conversion truncates toward zero.
    np.copyto(whole, terms, casting="unsafe")
    for first in range(0, k + 1, _SUMMED):
        np.add.reduce(whole[first : first + _SUMMED], axis=0, out=some)
        np.add(total, some, out=total) if first else np.copyto(total, some)
    np.multiply(total, (power + ((127 - rule.kept) << 23)).view(np.float32), out=total)
    if not rule.half:
        np.bitwise_and(total.view(np.uint64), np.uint64(2**64 - 2 ** (52 - rule.fraction)), out=total.view(np.uint64))
    out[...] = total
    if exact is not None:
        out[outside] = exact
