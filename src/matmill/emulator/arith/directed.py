"""float64 arithmetic rounded toward zero, down or up: the nearest value, adjusted by the sign of its error.

The error of the nearest value is computed with error-free transformations, or on significands if exponents are so
extreme that products would overflow or lose bits below the subnormals. IEEE 754 (2019), sections 4.3.2 and 6.3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith import exact, fma64
from matmill.emulator.arith.row import Row

_HIGH, _LOW = 2.0**500, 2.0**-400


def _moderate(*rows: Row) -> Row:
    """Return where all operands are zero or have exponents whose products can be split without loss."""
    fine = np.ones(np.broadcast_shapes(*(np.shape(r) for r in rows)), np.bool_)
    for row in rows:
        size = np.abs(row)
        fine &= (size == 0) | ((size > _LOW) & (size < _HIGH))
    return fine


def _settle(nearest: Row, error: Row, operands: tuple[Row, ...], lack: Callable[..., Row], mode: str) -> Row:
    """Adjust ``nearest`` to ``mode``; ``lack(nearest, *operands)`` has the sign of the error of extreme lanes."""
    finite = np.ones(nearest.shape, np.bool_)
    for row in operands:
        finite &= np.isfinite(row)
    error = np.where(finite & np.isfinite(nearest), error, 0.0)
    lanes = finite & np.isfinite(nearest) & ~_moderate(nearest, *operands)
    if lanes.any():
        error[lanes] = lack(*(np.broadcast_to(row, nearest.shape)[lanes] for row in (nearest, *operands)))
    # In an overflow the exact value is finite, so nearer to zero.
    error = np.where(finite & np.isinf(nearest), -np.sign(nearest), error)
    return exact.directed(nearest, error, mode)


def signed_zero(result: Row, a: Row, b: Row, mode: str) -> Row:
    """Return ``result``, the rounded sum of ``a`` and ``b``, with the sign of a zero: -0 when rounding down."""
    if mode != "rm":
        return result
    plus = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    vanished = (result == 0) & (a == -b) & ~plus
    return np.where(vanished, -result.dtype.type(0), result)


def total(a: Row, b: Row, mode: str) -> Row:
    """Return ``a + b``."""
    nearest, error = exact.two_sum(a, b)
    return signed_zero(_settle(nearest, error, (a, b), lambda _s, x, y: fma64.sum_error(x, y), mode), a, b, mode)


def product(a: Row, b: Row, mode: str) -> Row:
    """Return ``a * b``."""
    nearest, error = exact.two_product(a, b)
    return _settle(nearest, error, (a, b), lambda p, x, y: fma64.residual(x, y, -p), mode)


def quotient(a: Row, b: Row, mode: str) -> Row:
    """Return ``a / b``."""
    nearest = np.asarray(a / b)
    p, e = exact.two_product(nearest, np.broadcast_to(b, nearest.shape))
    # A divisor of zero gives an exact infinity, as operands that are not finite do.
    divisor = np.where(b == 0, np.inf, b)
    error = ((a - p) - e) * np.sign(b)
    return _settle(nearest, error, (a, divisor), lambda q, x, y: fma64.residual(-q, y, x) * np.sign(y), mode)


def reciprocal(a: Row, mode: str) -> Row:
    """Return ``1 / a``."""
    return quotient(np.ones_like(a), a, mode)


def root(a: Row, mode: str) -> Row:
    """Return the square root of ``a``."""
    nearest = np.sqrt(a)
    p, e = exact.two_product(nearest, nearest)
    return _settle(nearest, (a - p) - e, (a,), lambda s, x: fma64.residual(-s, s, x), mode)
