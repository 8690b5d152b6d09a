"""Binary floating-point numbers in Python's integers: a sign, and a whole number of units of a power of two.

Sums, products, quotients and roots are exact, or exact but for a last bit that says that there is more; then they are
rounded once, by definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

#: Sign, size in units and the unit's exponent. The size is ``math.inf`` for infinity and -1 for NaN.
Number: TypeAlias = tuple[int, float, int]
NAN: Number = (0, -1, 0)
#: Bits of a quotient or a root beyond those of its divisor, or half of those of its square.
_KEPT = 72


@dataclass(frozen=True)
class Format:
    """A format by its bits and those of its fraction; ``beyond`` are the bits of infinity where IEEE 754 has others."""

    bits: int
    fraction: int
    beyond: int = 0

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return self.beyond or ((1 << self.bits - 1 - self.fraction) - 1) << self.fraction

    @property
    def lowest(self) -> int:
        """The exponent of the smallest subnormal number."""
        return 2 - (1 << self.bits - 2 - self.fraction) - self.fraction

    def decode(self, bits: int, *, ftz: bool = False) -> Number:
        """Return the number of some bits, with zero for a subnormal one if ``ftz``."""
        sign, size = bits >> self.bits - 1, bits & (1 << self.bits - 1) - 1
        if size >= self.infinity:
            return NAN if size > self.infinity else (sign, math.inf, 0)
        exponent, low = size >> self.fraction, size & (1 << self.fraction) - 1
        if not exponent:
            return sign, 0 if ftz else low, self.lowest
        return sign, low | 1 << self.fraction, exponent - 1 + self.lowest

    def encode(self, number: Number, mode: str = "rn", *, ftz: bool = False) -> int:
        """Return the bits of a number rounded once; ``ftz`` flushes what is subnormal after rounding.

        That rounding knows no least exponent, as on GPUs (docs/emulator.md).
        """
        sign, size, unit = number
        top = sign << self.bits - 1
        if size < 0 or size == math.inf:
            return top | self.infinity | (size < 0) << self.fraction - 1
        n = int(size)
        if not n:
            return top
        last = n.bit_length() + unit - 1 - self.fraction
        if ftz and round_to(sign, n, unit, last, mode).bit_length() + last <= self.lowest + self.fraction:
            return top
        last = max(last, self.lowest)
        bits = round_to(sign, n, unit, last, mode) + (last - self.lowest << self.fraction)
        if bits >= self.infinity:
            inward = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and sign)
            bits = self.infinity - 1 if inward else self.infinity
        return top | bits


F16, BF16, F32, F64 = Format(16, 10), Format(16, 7), Format(32, 23), Format(64, 52)
# e4m3 has one NaN and no infinity.
TF32, E5M2, E4M3 = Format(19, 10), Format(8, 2), Format(8, 3, 0x7F)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "tf32": TF32}


def round_to(sign: int, n: int, unit: int, last: int, mode: str) -> int:
    """Return ``n`` units of 2**unit as a whole number of units of 2**last."""
    shift = last - unit
    if shift <= 0:
        return n << -shift
    whole, rest, half = n >> shift, n & (1 << shift) - 1, 1 << shift - 1
    up = {
        "rn": rest > half or (rest == half and whole & 1), "rna": rest >= half, "rz": False,
        "rm": sign and rest, "rp": not sign and rest,
    }[mode]  # fmt: skip
    return whole + bool(up)


def of_float(value: float) -> Number:
    """Return the number that a Python float is."""
    if not math.isfinite(value):
        return NAN if math.isnan(value) else (int(value < 0), math.inf, 0)
    numerator, denominator = abs(value).as_integer_ratio()
    return int(math.copysign(1, value) < 0), numerator, 1 - denominator.bit_length()


def to_float(number: Number) -> float:
    """Return a number that a Python float can hold."""
    sign, size, unit = number
    if size < 0:
        return math.nan
    return math.copysign(size if size == math.inf else math.ldexp(size, unit), -1 if sign else 1)


def add(x: Number, y: Number, mode: str = "rn") -> Number:
    """Return the sum; that of opposite numbers is +0, or -0 where rounding is down."""
    if x[1] < 0 or y[1] < 0 or (x[1] == y[1] == math.inf and x[0] != y[0]):
        return NAN
    if math.inf in (x[1], y[1]):
        return x if x[1] == math.inf else y
    unit = min(x[2], y[2])
    left, right = (int(size) << own - unit for _, size, own in (x, y))
    total = (-left if x[0] else left) + (-right if y[0] else right)
    if not total:
        return x[0] if x[0] == y[0] else int(mode == "rm"), 0, unit
    return int(total < 0), abs(total), unit


def negative(x: Number) -> Number:
    """Return -x."""
    return 1 - x[0], x[1], x[2]


def multiply(x: Number, y: Number) -> Number:
    """Return the product."""
    if x[1] < 0 or y[1] < 0 or {x[1], y[1]} == {0, math.inf}:
        return NAN
    return x[0] ^ y[0], x[1] * y[1], x[2] + y[2]


def divide(x: Number, y: Number) -> Number:
    """Return the quotient, with a last bit that says whether there is more."""
    if x[1] < 0 or y[1] < 0 or x[1] == y[1] == 0 or x[1] == y[1] == math.inf:
        return NAN
    sign = x[0] ^ y[0]
    if x[1] == math.inf or not y[1]:
        return sign, math.inf, 0
    if y[1] == math.inf or not x[1]:
        return sign, 0, 0
    divisor = int(y[1])
    shift = _KEPT + divisor.bit_length()
    whole, rest = divmod(int(x[1]) << shift, divisor)
    return sign, whole << 1 | bool(rest), x[2] - y[2] - shift - 1


def root(x: Number) -> Number:
    """Return the square root, with a last bit that says whether there is more."""
    sign, size, unit = x
    if size <= 0 or size == math.inf:
        return NAN if sign and size else x
    if sign:
        return NAN
    shift = 2 * _KEPT + unit % 2
    whole = math.isqrt(int(size) << shift)
    return 0, whole << 1 | (whole * whole != int(size) << shift), (unit - shift) // 2 - 1
