"""Floats of 8 bits, for which NumPy has no types: rows of bit patterns, widened to float32.

OCP 8-bit Floating Point Specification: E4M3 has no infinities and one NaN of each sign; E5M2 is the upper byte of
float16.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith.row import Row

_BITS = np.arange(256, dtype=np.uint8)


def _e4m3_values() -> Row:
    exponent, fraction = _BITS >> 3 & 15, _BITS & 7
    normal = exponent > 0
    size = np.ldexp((fraction + 8 * normal).astype(np.float32), np.maximum(exponent, 1).astype(np.int32) - 10)
    size[_BITS & 0x7F == 0x7F] = np.nan
    return np.asarray(np.where(_BITS < 0x80, size, -size), np.float32)


_E4M3 = _e4m3_values()
_E5M2 = (_BITS.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def e4m3_to_f32(row: Row) -> Row:
    """E4M3 bit patterns (uint8) to float32."""
    values: Row = _E4M3[row]
    return values


def e5m2_to_f32(row: Row) -> Row:
    """E5M2 bit patterns (uint8) to float32."""
    values: Row = _E5M2[row]
    return values


# Formats by their PTX names: bit patterns to float32.
FORMATS: dict[str, Callable[[Row], Row]] = {"e4m3": e4m3_to_f32, "e5m2": e5m2_to_f32}
# The values halfway between one positive number of a format and the next.
_HALFWAY = {
    name: (values(_BITS[:largest]) + values(_BITS[1 : largest + 1])) / 2
    for (name, values), largest in zip(FORMATS.items(), (0x7E, 0x7B), strict=True)
}


def narrowed(row: Row, name: str, *, relu: bool = False) -> Row:
    """Floats rounded to nearest even in the format ``name``, as bit patterns (uint8).

    What is too large, infinity among it, becomes the largest number (.satfinite). NaN is 0x7f. With ``relu`` negative
    numbers are +0.
    """
    halfway, size = _HALFWAY[name], np.abs(row)
    # The number of those halfway values that are below it; one that it meets goes to an even pattern.
    found = np.searchsorted(halfway, size)
    met = (found < len(halfway)) & (size == halfway[np.minimum(found, len(halfway) - 1)])
    patterns = (found + (met & (found & 1 == 1))).astype(np.uint8)
    negative = np.signbit(row)
    patterns = np.where(negative & relu, 0, patterns | negative.astype(np.uint8) << 7)
    return np.asarray(np.where(np.isnan(row), 0x7F, patterns), np.uint8)
