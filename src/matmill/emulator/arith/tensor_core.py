"""The arithmetic of tensor cores, bit for bit: terms are aligned to the largest exponent, truncated and summed.

A group of products is added to C at once; longer sums add group after group in the order of k. In a group

1. the exponent of a product is the sum of its factors' exponents, also where their significands' product is 2 or more;
   a subnormal factor has the least exponent of its format, a zero none;
2. E is the largest exponent of the products and of C, and at least ``Rule.floor``;
3. every product (exact) and C are truncated toward zero to multiples of 2**(E - ``Rule.kept``);
4. their exact sum is truncated toward zero to ``Rule.fraction`` bits, or rounded to nearest even to float16.

Subnormals are kept. A NaN, or infinities of both signs, give NaN (all bits set but the sign); else an infinity wins.
Zeros are +0, also where all terms are -0 or a negative sum is rounded to 0.

Sources: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004), with results recorded on
GPUs (tests/golden/tensor_core.npz); for Turing Xie and others, "MMA-Sim" (arXiv 2511.10909). Zeros, NaN and sums of all
magnitudes: measured on an H200 (tests/golden/h200_mma.npz).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.row import Row

F4 = NDArray[np.float32]
F8 = NDArray[np.float64]
I2 = NDArray[np.int16]

#: The least exponents of normal numbers.
_LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
#: Formats of 8 bits.
BYTES = {"e4m3", "e5m2"}
_HOPPER = 90
# Substitutes for the exponents of zeros, and of infinities and NaN: added to any other exponent they remain outside the
# range of numbers.
_ZERO, _SPECIAL = np.int16(-2000), np.int16(8000)
_NO_NUMBER = -1000
# If E is between these, float32 represents each term exactly unless it is truncated to 0, and the quantum as a normal
# number.
_LOWEST, _HIGHEST = -101, 126
# A truncated product is below 2**27 quanta, so that 32 bits hold the sum of this many.
_SUMMED = 16
# The largest number that float16 rounds to 0.
_HALF_ZERO = 2.0**-25
#: The NaN of tensor cores, and of sums on a GPU.
NAN: dict[type[np.floating[Any]], np.generic] = {
    np.float16: np.uint16(0x7FFF).view(np.float16),
    np.float32: np.uint32(0x7FFFFFFF).view(np.float32),
}
# Products of a piece: with their exponents and truncated values they stay in a core's second-level cache.
_PIECE = 131072


@dataclass(frozen=True)
class Rule:
    """The addition of products of one format to C of another.

    ``group`` products are added at once. ``kept`` bits below the largest exponent count, which is at least ``floor``.
    ``least`` and ``least_sum`` are the least exponents of normal factors, and of normal C. With ``half`` D is float16,
    rounded to nearest even; else float32, truncated to ``fraction`` bits.
    """

    group: int
    kept: int
    floor: int
    least: int
    least_sum: int
    fraction: int
    half: bool


def rule_of(target: str, factors: str, sums: str) -> Rule:
    """Return the rule of a target such as "sm_90a" for factors of f16, bf16, tf32, e4m3 or e5m2 and sums of f32 or f16.

    8-bit factors have Hopper's rule everywhere, and later GPUs have Hopper's rules.
    """
    match = re.match(r"sm_(\d+)", target)
    hopper = match is None or int(match[1]) >= _HOPPER or factors in BYTES
    group, kept, below = (16, 25, 7) if hopper else (8, 24, 6)
    if factors in BYTES:
        group, kept = 32, 13
    elif factors == "tf32":
        group //= 2
    least_sum = _LEAST[sums]
    fraction = 13 if factors in BYTES else 23
    return Rule(group, kept, least_sum - below, _LEAST[factors], least_sum, fraction, half=sums == "f16")


class Factor(NamedTuple):
    """A or B: values as float32[k, ...], and their exponents (int16) for the fast path."""

    values: F4
    exponents: I2

    def part(self, k: slice, rows: slice) -> Factor:
        """Return a slice of k, and of the axis after it, unless that is broadcast."""
        where = (k, slice(None) if self.values.shape[1] == 1 else rows)
        return Factor(self.values[where], self.exponents[where])


class TensorCore:
    """Tensor cores that add by ``rule``, for any number of products."""

    def __init__(self, rule: Rule, buffers: Buffers) -> None:
        self.rule = rule
        self.buffers = buffers

    def factor(self, values: F4) -> Factor:
        """Return A or B for float32[k, ...] with values of the factors' format."""
        return Factor(values, _exponents(values, self.rule.least))

    def add(self, a: Factor, b: Factor, sums: Row) -> None:
        """Add the products of ``a`` and ``b``, summed over k, to ``sums`` in place.

        The factors broadcast against each other; ``sums`` has their common shape without k and is float32, or float16
        if the rule says so. It is fast if the last axes are long and none of them is broadcast.
        """
        k, *shape = np.broadcast_shapes(a.values.shape, b.values.shape)
        group = min(self.rule.group, k)
        step = max(1, _PIECE * shape[0] // (group * prod(shape)))
        with np.errstate(all="ignore"):
            for row in range(0, shape[0], step):
                rows = slice(row, row + step)
                for first in range(0, k, group):
                    some = slice(first, first + group)
                    self._add_group(a.part(some, rows), b.part(some, rows), sums[rows])

    def _add_group(self, a: Factor, b: Factor, sums: Row) -> None:
        """Add one group of products of a piece, in float32 and int32; the few that do not fit there in float64."""
        k, shape, rule = len(a.values), sums.shape, self.rule
        terms, whole = self._scratch("f4", k + 1, shape), self._scratch("i4", k + 1, shape)
        terms[k] = sums
        exponents = np.add(a.exponents, b.exponents, out=self._scratch("i2", k, shape))
        largest = np.maximum(np.maximum.reduce(exponents, axis=0), _exponents(terms[k], rule.least_sum))
        outside = (largest > _HIGHEST) | ((largest < _LOWEST) & (largest > _NO_NUMBER))
        exact = None
        if outside.any():
            left, right = (np.broadcast_to(x.values, (k, *shape))[:, outside].astype(np.float64) for x in (a, b))
            exact = aligned_sum(left, right, sums[outside].astype(np.float64), rule)
        # The exponent at its position in float32, from which the quantum and its inverse are made.
        power = np.minimum(np.maximum(largest, max(_LOWEST, rule.floor)), _HIGHEST).astype(np.int32) << 23
        np.multiply(a.values, b.values, out=terms[:k])
        np.multiply(terms, (((127 + rule.kept) << 23) - power).view(np.float32), out=terms)
        # The conversion truncates toward zero.
        np.copyto(whole, terms, casting="unsafe")
        total: F8 = np.add.reduce(whole[:_SUMMED], axis=0, dtype=np.int32).astype(np.float64)
        for first in range(_SUMMED, k + 1, _SUMMED):
            np.add(total, np.add.reduce(whole[first : first + _SUMMED], axis=0, dtype=np.int32), out=total)
        np.multiply(total, (power + ((127 - rule.kept) << 23)).view(np.float32), out=total)
        if rule.half:
            np.copyto(total, 0, where=np.abs(total) <= _HALF_ZERO)
        else:
            bits = total.view(np.uint64)
            np.bitwise_and(bits, np.uint64(2**64 - 2 ** (52 - rule.fraction)), out=bits)
        sums[...] = total
        if exact is not None:
            sums[outside] = exact

    def _scratch(self, dtype: str, rows: int, shape: tuple[int, ...]) -> Row:
        taken: Row = self.buffers.take(f"tensor core {dtype}", dtype, rows * prod(shape))
        return taken.reshape(rows, *shape)


def aligned_sum(a: F8, b: F8, c: F8, rule: Rule) -> Row:
    """Return ``c`` (float64[n]) plus one group of products ``a * b`` (float64[k, n] each), for any values.

    This is the rule itself, without optimisation.
    """
    products = a * b
    special = products.sum(axis=0) + c
    none = -(1 << 20)
    exponents = np.where(products != 0, _exponent(a, rule.least) + _exponent(b, rule.least), none)
    largest = np.maximum(exponents.max(axis=0), np.where(c != 0, _exponent(c, rule.least_sum), none))
    quantum = np.ldexp(1.0, np.maximum(largest, rule.floor) - rule.kept)
    total = (np.trunc(products / quantum).sum(axis=0) + np.trunc(c / quantum)) * quantum
    total = np.where(np.isfinite(special), total, special)
    if not rule.half:
        step = np.ldexp(1.0, _exponent(total, rule.least_sum) - rule.fraction)
        total = np.trunc(total / step) * step
    dtype: type[np.floating[Any]] = np.float16 if rule.half else np.float32
    # Adding 0 makes -0 positive.
    return np.where(np.isnan(total), NAN[dtype], total.astype(dtype) + dtype(0))


def _exponent(x: F8, least: int) -> NDArray[np.int32]:
    """Return ``floor(log2 |x|)``, at least ``least``; arbitrary for 0 and non-finite values."""
    return np.asarray(np.maximum(np.frexp(x)[1] - 1, least), np.int32)


def _exponents(x: F4, least: int) -> I2:
    """Return the exponents of float32 values, at least ``least``; ``_ZERO`` and ``_SPECIAL`` for values without one."""
    size = np.abs(x)
    biased = (size.view(np.int32) >> 23).astype(np.int16)
    exponents: I2 = np.maximum(biased, np.int16(least + 127)) - np.int16(127)
    exponents += (biased == np.int16(255)) * _SPECIAL
    exponents += (size == 0) * _ZERO
    return exponents
