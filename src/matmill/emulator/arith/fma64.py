"""float64 FMAs that round once, in any direction and at any exponents.

For moderate exponents this is the algorithm of Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
proved algorithms using rounding to odd" (IEEE Trans. Computers 57, 2008). Near the limits the same algorithm runs on
significands, and the exponents are put back at the end: results below the normal range are then rounded to multiples of
the smallest subnormal number, and the error of the 53-bit sum breaks ties.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.exact import F8, directed, sum_to_odd, two_product, two_sum
from matmill.emulator.arith.row import Mask, Row

_SAFE_HIGH = 2.0**900
_SAFE_LOW = 2.0**-900
_MIN_NORMAL = 2.0**-1022
_LOWEST = -1074  # the exponent of the smallest subnormal number
#: A term so many powers of two above or below the other one changes the result only by its sign.
_FAR = 128


def fma64(a: Row, b: Row, c: Row, out: F8) -> None:
    """Compute ``a * b + c`` of float64 values, rounded once to nearest."""
    a, b, c = np.broadcast_arrays(a, b, c)
    p, e = two_product(a, b)
    high, low = _unevaluated(p, e, c)
    result = high + low
    size = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.maximum(np.abs(c), np.abs(p)))
    extreme = ~(size < _SAFE_HIGH) | (np.abs(p) < _SAFE_LOW)
    easy = _easy(a, b, c)
    if easy.any():
        result = np.where(easy, _plain(p, a, b, c), result)
    extreme &= ~easy
    if extreme.any():
        result[extreme] = _any_exponents(a[extreme], b[extreme], c[extreme])[0]
    out[...] = result


def fma64_directed(a: Row, b: Row, c: Row, mode: str) -> Row:
    """Return ``a * b + c`` of float64 values, rounded once in ``mode`` (rz, rm or rp)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    easy = _easy(a, b, c)
    nearest, error = _any_exponents(*(np.where(easy, 0.0, row) for row in (a, b, c)))
    # In an overflow the exact value is finite, so nearer to zero.
    error = np.where(np.isinf(nearest), -np.sign(nearest), error)
    p = a * b
    result = np.where(easy, _plain(p, a, b, c), directed(nearest, error, mode))
    if mode != "rm":
        return result
    # When rounding down, a sum that is exactly zero is -0, unless both terms are +0.
    plus = easy & ~np.signbit(p) & ~np.signbit(c)
    return np.where((result == 0) & (error == 0) & ~plus, -0.0, result)


def residual(a: Row, b: Row, c: Row) -> F8:
    """Return a number with the sign of the error of the rounded ``a * b + c`` of finite float64, 0 if it is exact."""
    return _on_significands(a, b, c)[0]


def sum_error(a: Row, b: Row) -> F8:
    """Return a number with the sign of the error of the rounded ``a + b`` of finite float64, 0 if it is exact."""
    return _on_significands(a, np.ones_like(a), b)[1]


def _easy(a: Row, b: Row, c: Row) -> Mask:
    """Return where the plain formula rounds once: no product to add, or operands that are not finite."""
    return np.asarray((a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c))


def _plain(p: Row, a: Row, b: Row, c: Row) -> Row:
    """Return ``p + c`` for the product ``p`` of two factors, which is finite if they are, however large."""
    return np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, p + c)


def _unevaluated(p: Row, e: Row, c: Row) -> tuple[Row, F8]:
    """Return two numbers whose sum rounds as the exact ``p + e + c`` does; exponents must be moderate."""
    uh, ul = two_sum(c, e)
    th, tl = two_sum(p, uh)
    return th, sum_to_odd(tl, ul)


def _on_significands(a: Row, b: Row, c: Row) -> tuple[F8, F8, Row]:
    """Return ``a * b + c`` rounded to 53 bits with unbounded exponents, the sign of its error, and its scale.

    The value is the first number times 2 to the power of the third.
    """
    (x, i), (y, j), (z, k) = (np.frexp(row) for row in (a, b, c))
    scale = i + j
    distance = np.where(z == 0, 0, k - scale)
    near = np.clip(distance, -_FAR, _FAR)
    total, error = two_sum(*_unevaluated(*two_product(x, y), np.ldexp(z, near)))
    return total, error, np.where(distance > _FAR, k - _FAR, scale)


def _any_exponents(a: Row, b: Row, c: Row) -> tuple[F8, F8]:
    """Return ``a * b + c`` of finite values rounded to nearest, and a number with the sign of its error."""
    total, error, scale = _on_significands(a, b, c)
    result = np.asarray(np.ldexp(total, scale))
    low = np.abs(result) <= _MIN_NORMAL
    if low.any():
        result[low], error[low] = _subnormal(total[low], error[low], scale[low])
    return result, error


def _subnormal(total: F8, error: F8, scale: Row) -> tuple[F8, F8]:
    """Return ``total * 2**scale`` rounded to a multiple of the smallest number; ``error`` has the sign of the rest."""
    # Far below half of the smallest number only the sign counts.
    count = np.ldexp(total, np.maximum(scale - _LOWEST, -_FAR))
    whole = np.rint(count)
    rest = count - whole
    # `rint` breaks ties to even, but it is not a tie if the error has the sign of the rest.
    whole = np.where((np.abs(rest) == 0.5) & (np.sign(rest) == np.sign(error)), whole + np.sign(rest), whole)
    rest = count - whole
    return np.copysign(np.ldexp(whole, _LOWEST), total), np.where(rest == 0, error, rest)
