"""Floats of 8 bits and fewer, for which NumPy has no types: rows of bit patterns, widened to float32.

OCP 8-bit Floating Point Specification: E4M3 has no infinities and one NaN of each sign; E5M2 is the upper byte of
float16. OCP Microscaling Formats Specification: E2M3, E3M2 and E2M1 have neither, and E8M0 is an exponent alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matmill.emulator.arith.row import Row


@dataclass(frozen=True, eq=False)
class SmallFloat:
    """A format: the values of its bit patterns (float32[2**bits]), and the patterns of largest number, NaN and sign.

    Formats without NaN have the largest number in its place, as conversions do.
    """

    values: Row
    largest: int
    nan: int
    sign: int

    def narrowed(self, row: Row, mode: str = "rn", *, relu: bool = False) -> Row:
        """Round floats to nearest even ("rn") or toward zero ("rz"), as bit patterns (uint8).

        Larger numbers, and infinity, become the largest number (.satfinite). With ``relu`` negative numbers become +0.
        """
        numbers, size = self.values[: self.largest + 1], np.abs(row)
        if mode == "rz":
            index = np.searchsorted(numbers, size, side="right") - 1
        else:
            halfway = (numbers[:-1] + numbers[1:]) / 2
            # The index counts the patterns below; a tie goes to the even pattern.
            index = np.searchsorted(halfway, size)
            met = (index < self.largest) & (size == halfway[np.minimum(index, self.largest - 1)])
            index = index + (met & (index & 1 == 1))
        negative = np.signbit(row)
        patterns = np.where(negative & relu, 0, index | np.where(negative, self.sign, 0))
        return np.where(np.isnan(row), self.nan, patterns).astype(np.uint8)


def _format(
    exponent_bits: int, fraction_bits: int, largest: int, nan: int | None = None, *, infinite: bool = False
) -> SmallFloat:
    """Return a format with a sign, an exponent and a fraction, and maybe an infinity after the largest number."""
    bits = np.arange(1 << (1 + exponent_bits + fraction_bits))
    sign = len(bits) // 2
    magnitude = bits % sign
    exponent, fraction = magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1)
    significand = (fraction + ((exponent > 0) << fraction_bits)).astype(np.float64)
    least = 2 - (1 << (exponent_bits - 1)) - fraction_bits
    size = np.ldexp(significand, np.maximum(exponent, 1) - 1 + least)
    size[magnitude > largest] = np.nan
    if infinite:
        size[magnitude == largest + 1] = np.inf
    values = np.where(bits < sign, size, -size).astype(np.float32)
    return SmallFloat(values, largest, largest if nan is None else nan, sign)


#: The formats by their PTX names.
SMALL_FLOATS = {
    "e4m3": _format(4, 3, 0x7E, 0x7F),
    "e5m2": _format(5, 2, 0x7B, 0x7F, infinite=True),
    "e2m3": _format(2, 3, 0x1F),
    "e3m2": _format(3, 2, 0x1F),
    "e2m1": _format(2, 1, 0x7),
}
_POWERS = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)


def e4m3_to_f32(row: Row) -> Row:
    """Convert E4M3 bit patterns (uint8) to float32."""
    values: Row = SMALL_FLOATS["e4m3"].values[row]
    return values


def e5m2_to_f32(row: Row) -> Row:
    """Convert E5M2 bit patterns (uint8) to float32."""
    values: Row = SMALL_FLOATS["e5m2"].values[row]
    return values


def e8m0_to_f32(row: Row) -> Row:
    """Convert E8M0 bit patterns (uint8) to float32: powers of two, and NaN."""
    values: Row = _POWERS[row]
    return values


def f32_to_e8m0(row: Row, mode: str, *, satfinite: bool) -> Row:
    """Return the exponents of float32 numbers, rounded down ("rz") or up ("rp"), whatever their signs; NaN is 0xff.

    Infinity becomes NaN, or with ``satfinite`` the largest number.
    """
    bits = np.abs(row).view(np.uint32)
    exponent = bits >> np.uint32(23)
    if mode == "rp":
        # Nothing is below 2**-127, which is a subnormal float32.
        exponent += (bits & np.uint32(0x7FFFFF) != 0) & (bits > np.uint32(1 << 22)) & (exponent < 0xFF)
    return np.where(satfinite & (exponent == 0xFF) & ~np.isnan(row), 0xFE, exponent).astype(np.uint8)
