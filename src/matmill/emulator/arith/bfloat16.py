"""bfloat16, which NumPy lacks: rows of 16-bit patterns, widened to float32 and rounded back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith.row import Row


def bf16_to_f32(row: Row) -> Row:
    """Convert bfloat16 bit patterns to float32."""
    return np.left_shift(row, np.uint32(16), dtype=np.uint32).view(np.float32)


def f32_to_bf16(row: Row) -> Row:
    """Convert float32 to bfloat16 bit patterns, to nearest even; NaN becomes 0x7fff."""
    bits = row.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(row), np.uint32(0x7FFF), rounded).astype(np.uint16)


def f64_odd_to_bf16(wide: Row, mode: str = "rn") -> Row:
    """Convert float64 values rounded to odd to bfloat16, rounded once.

    The intermediate float32 is rounded to odd too.
    """
    wide = np.atleast_1d(wide)
    near = wide.astype(np.float32)
    error = np.where(np.isfinite(near), wide - near, 0.0)
    bits = near.view(np.uint32)
    odd = (error != 0) & (bits & np.uint32(1) == 0)
    away = (error > 0) != np.signbit(near)
    bits = np.where(odd, np.where(away, bits + np.uint32(1), bits - np.uint32(1)), bits)
    # Beyond float32's range it is the largest float32, which is odd, and is rounded to infinity if the mode requires.
    bits = np.where(np.isinf(near) & np.isfinite(wide), bits - np.uint32(1), bits)
    if mode == "rn":
        return f32_to_bf16(bits.view(np.float32))
    negative = np.signbit(near)
    outward = {"rz": False, "rm": negative, "rp": ~negative}[mode]
    step = np.where(outward & (bits & np.uint32(0xFFFF) != 0), np.uint32(0x10000), np.uint32(0))
    return np.where(np.isnan(wide), np.uint32(0x7FFF), (bits + step) >> np.uint32(16)).astype(np.uint16)


def is_bf16(type_name: str) -> bool:
    """Tell whether rows of this PTX type are bfloat16 bit patterns."""
    return type_name.startswith("bf16")


def through_f32(call: Callable[..., Row]) -> Callable[..., object]:
    """Return a function of float32 rows applied to bfloat16 bit patterns."""

    def wrapped(*rows: Row) -> None:
        *sources, out = rows
        out[...] = f32_to_bf16(np.asarray(call(*(bf16_to_f32(s) for s in sources)), np.float32))

    return wrapped
