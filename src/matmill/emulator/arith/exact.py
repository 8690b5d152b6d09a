"""Floating-point arithmetic that rounds once, in a given direction, on rows of lanes.

A float32 FMA uses float64: the product of two 24-bit significands is exact in 53 bits, and the sum, rounded to 53 bits
and then to 24, is wrong only if the first rounding hits a midpoint of the second, or if the result is subnormal in
float32. Both are rare, cheap to detect, and corrected by rounding the sum to odd.

float64 has no wider type: see fma64.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row

F4 = NDArray[np.float32]
F8 = NDArray[np.float64]

# The 29 bits of float64 beyond float32, and their value at a midpoint.
LOW_BITS = np.uint64((1 << 29) - 1)
MIDPOINT = np.uint64(1 << 28)
_ONE = np.uint64(1)
_MIN_NORMAL_32 = 2.0**-126
_MIN_NORMAL = {"f4": np.float32(_MIN_NORMAL_32), "f2": np.float16(2.0**-14)}
_SPLIT = 134217729.0


def two_sum(a: Row, b: Row) -> tuple[Row, Row]:
    """Return ``a + b`` rounded, and the error of the rounding (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Row, b: Row) -> tuple[Row, Row]:
    """Return ``a * b`` rounded, and the error of the rounding (Dekker and Veltkamp); exponents must be moderate."""
    p = a * b
    t = _SPLIT * a
    ah = t - (t - a)
    al = a - ah
    t = _SPLIT * b
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Row, error: Row) -> F8:
    """Return ``s + error`` rounded to odd, ready for a second rounding; ``s`` is that sum rounded to nearest."""
    bits = np.array(s, np.float64, ndmin=1).view(np.uint64)
    inexact = (error != 0) & np.isfinite(error) & np.isfinite(s) & (bits & _ONE == 0)
    away = (error > 0) != np.signbit(s)
    step = np.where(away, np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF))
    return np.where(inexact, bits + step, bits).view(np.float64)


def sum_to_odd(a: Row, b: Row) -> F8:
    """Return ``a + b`` rounded to odd in float64."""
    s, error = two_sum(np.asarray(a, np.float64), np.asarray(b, np.float64))
    return to_odd(s, error)


def fma32_wide(a: Row, b: Row, c: Row) -> F8:
    """Return ``a * b + c`` of float32 (or narrower) values as float64 rounded to odd.

    Any narrower rounding of it is then correct.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    return sum_to_odd(product, np.asarray(c, np.float64))


def product_wide(a: Row, b: Row) -> F8:
    """Return ``a * b`` of float32 (or narrower) values, which is exact in float64."""
    return np.asarray(np.multiply(a, b, dtype=np.float64))


def quotient_wide(a: Row, b: Row) -> F8:
    """Return ``a / b`` of float32 (or narrower) values as float64 rounded to odd."""
    wide = np.divide(a, b, dtype=np.float64)
    back = wide * np.asarray(b, np.float64)
    error = np.where(np.isfinite(wide), (np.asarray(a, np.float64) - back) * np.sign(b), 0.0)
    return to_odd(wide, error)


def directed(s: Row, error: Row, mode: str) -> Row:
    """Adjust ``s``, a sum or product rounded to nearest with this ``error``, to the rounding ``mode``: rz, rm or rp."""
    down = np.nextafter(s, np.array(-np.inf, s.dtype))
    up = np.nextafter(s, np.array(np.inf, s.dtype))
    too_high = error < 0
    too_low = error > 0
    if mode == "rm":
        return np.where(too_high, down, s)
    if mode == "rp":
        return np.where(too_low, up, s)
    return np.where(too_high & (s > 0), down, np.where(too_low & (s < 0), up, s))


def narrow(wide: F8, dtype: type[np.floating[Any]], mode: str) -> Row:
    """Round float64 once to ``dtype`` in ``mode`` (rn, rz, rm, rp)."""
    near = wide.astype(dtype)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    result = directed(near, np.where(np.isfinite(wide), wide - back, 0.0), mode)
    return result if result.dtype == dtype else result.astype(dtype)


class Buffers:
    """Scratch arrays that all instructions of one machine share, since only one runs at a time."""

    def __init__(self) -> None:
        self._arrays: dict[str, Row] = {}

    def take(self, name: str, dtype: str, elements: int) -> Row:
        """Return at least ``elements`` elements, flat, with arbitrary contents."""
        have = self._arrays.get(name)
        if have is None or len(have) < elements:
            have = self._arrays[name] = np.empty(elements, dtype)
        return have[:elements]


class Fused32:
    """fma.rn.f32 on rows of ``lanes``; ``underflow`` is set by NumPy's error state (see ``run``)."""

    def __init__(self, lanes: int, buffers: Buffers, underflow: list[bool]) -> None:
        self.product: F8 = buffers.take("product", "f8", lanes)
        self.result: F4 = buffers.take("narrow", "f4", lanes)
        self.bits = buffers.take("bits", "u8", lanes)
        self.hit = buffers.take("hit", "?", lanes)
        self.underflow = underflow

    def __call__(self, a: Row, b: Row, c: Row, out: F4) -> None:
        """Compute ``out = a * b + c`` rounded once; rows of float32, or scalars; ``out`` may be any of them."""
        s = self.product
        np.multiply(a, b, out=s, dtype=np.float64)
        np.add(s, c, out=s)
        np.bitwise_and(s.view(np.uint64), LOW_BITS, out=self.bits)
        np.equal(self.bits, MIDPOINT, out=self.hit)
        if self.hit.any():
            repair_midpoints(s, self.hit, a, b, c)
        self.underflow[0] = False
        np.copyto(self.result, s, casting="same_kind")
        if self.underflow[0]:
            repair_subnormals(self.result, a, b, c)
        np.copyto(out, self.result)


def repair_midpoints(s: F8, hit: NDArray[np.bool_], a: Row, b: Row, c: Row) -> None:
    """Round those sums ``a * b + c`` in ``s`` to odd where ``hit``; operands broadcast against ``s``."""
    a, b, c = (np.broadcast_to(x, s.shape)[hit] for x in (a, b, c))
    s[hit] = fma32_wide(a, b, c)


def repair_subnormals(result: F4, a: Row, b: Row, c: Row) -> None:
    """Recompute the results below float32's normal range, which have fewer bits than the midpoint test assumes."""
    tiny = np.abs(result) <= _MIN_NORMAL_32
    a, b, c = (np.broadcast_to(x, result.shape)[tiny] for x in (a, b, c))
    result[tiny] = fma32_wide(a, b, c).astype(np.float32)


def flushed(
    call: Callable[..., object], exactly: Callable[..., F8] | None = None, mode: str = "rn"
) -> Callable[..., object]:
    """Return ``call`` with subnormal float32 and float16 inputs and results replaced by zeros of their sign (``.ftz``).

    ``exactly`` computes the value that ``call`` rounds in ``mode``. It is needed for operations whose result may be
    rounded up to the smallest normal number (see :func:`is_tiny`). Sums cannot be: below it they are exact.
    """

    def wrapped(*rows: Row) -> None:
        *sources, out = rows
        sources = [flush(x) for x in sources]
        call(*sources, out)
        out[...] = flush(out) if exactly is None else flush_rounded(out, lambda: exactly(*sources), mode)

    return wrapped


def flush_rounded(result: Row, exactly: Callable[[], F8], mode: str) -> Row:
    """Flush as :func:`flush` does, and also the smallest normal number in ``result`` if ``exactly()`` is tiny."""
    smallest = _MIN_NORMAL.get(result.dtype.str[1:])
    if smallest is None:
        return result
    lowest = np.abs(result) == smallest
    if lowest.any():
        zero = np.copysign(result.dtype.type(0), result)
        result = np.where(lowest & is_tiny(exactly(), result.dtype.type, mode), zero, result)
    return flush(result)


def is_tiny(wide: F8, dtype: type[np.floating[Any]], mode: str) -> NDArray[np.bool_]:
    """Return where exact results, as float64 rounded to odd, count as subnormal, i.e. below the smallest normal number.

    GPUs test after rounding to ``dtype``'s bits in ``mode``, as if exponents were unbounded. So 2**-126 (1 - 2**-24) is
    flushed although as a subnormal it would be rounded up to 2**-126, and 2**-126 (1 - 2**-40), to nearest, is not
    (IEEE 754, section 7.5; measured on an H200: docs/emulator.md).
    """
    # Multiplied by 256, nothing near that number is subnormal.
    smallest = 256.0 * float(np.finfo(dtype).smallest_normal)
    return np.asarray(np.abs(narrow(wide * 256.0, dtype, mode)) < smallest)


def flush(row: Row) -> Row:
    """Return float32 or float16 values with subnormals replaced by zeros of their sign.

    Rows of other types stay as they are.
    """
    smallest = _MIN_NORMAL.get(row.dtype.str[1:])
    if smallest is None:
        return row
    return np.where(np.abs(row) < smallest, np.copysign(row.dtype.type(0), row), row)


def unit(row: Row) -> Row:
    """Clamp values to [0, 1]; NaN and -0 become +0 (``.sat``)."""
    return np.asarray(np.where(row > 0, np.minimum(row, row.dtype.type(1)), row.dtype.type(0)))


def not_negative(row: Row) -> Row:
    """Replace negative values and -0 by +0; NaN remains (``.relu``)."""
    return np.where(row <= 0, row.dtype.type(0), row)
