"""Figures in few characters: three significant digits and a decimal prefix."""

from __future__ import annotations

import math

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float) -> str:
    """Format a whole number, exactly below 10,000.

    >>> count(9999), count(16777216), count(524288), count(999_999)
    ('9999', '16.8M', '524k', '1.00M')
    """
    return "".join(_scaled(value))


def quantity(value: float, unit: str) -> str:
    """Format a number with a unit, exactly below 10,000.

    >>> quantity(6e9, "B"), quantity(9999, "B"), quantity(4.8e12, "B/s")
    ('6.00 GB', '9999 B', '4.80 TB/s')
    """
    number, prefix = _scaled(value)
    return f"{number} {prefix}{unit}"


def _scaled(value: float) -> tuple[str, str]:
    """Return a number's text and its decimal prefix, which is empty below 10,000."""
    if abs(value) >= 1e4:
        for scale, letter in _LARGE:
            # 999,999 is 1.00M, not 1000k.
            if abs(value) >= scale * 0.9995:
                return digits(value / scale), letter
    return f"{value:.0f}", ""


def digits(value: float) -> str:
    """Format three significant digits without an exponent.

    >>> digits(0.01234), digits(1.2345), digits(12.345), digits(1234.5), digits(0.99999)
    ('0.0123', '1.23', '12.3', '1234', '1.00')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.3g}")  # first, so that 0.99999 counts as 1.00
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{min(decimals, 6)}f}"


def seconds(value: float) -> str:
    """Format a time.

    >>> seconds(0.0123), seconds(5.3e-5), seconds(2.0), seconds(1.3e-11)
    ('12.3 ms', '53.0 us', '2.00 s', '0.0130 ns')
    """
    if value >= 1:
        return f"{digits(value)} s"
    if value >= 1e-3:
        return f"{digits(value * 1e3)} ms"
    return f"{digits(value * 1e6)} us" if value >= 1e-7 else f"{digits(value * 1e9)} ns"


def rate(tflops: float) -> str:
    """Format a rate of arithmetic in TFLOP/s or, for small rates, GFLOP/s.

    >>> rate(51.1), rate(0.203), rate(0.00052), rate(0)
    ('51.1 TFLOP/s', '0.203 TFLOP/s', '0.520 GFLOP/s', '0 TFLOP/s')
    """
    return f"{digits(tflops * 1e3)} GFLOP/s" if 0 < tflops < 0.01 else f"{digits(tflops)} TFLOP/s"


def percent(fraction: float) -> str:
    """Format a fraction of 1 in per cent.

    >>> percent(0.0512), percent(1.013)
    ('5.1%', '101.3%')
    """
    return f"{fraction * 100:.1f}%"


def ratio(part: float, whole: float) -> str:
    """Format ``part / whole``, or a dash for ``whole`` 0.

    >>> ratio(5, 2), ratio(0, 0)
    ('2.50', '-')
    """
    return digits(part / whole) if whole else "-"
