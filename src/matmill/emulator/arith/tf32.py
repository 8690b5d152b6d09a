"""Rounding of float32 to tf32, which keeps ten bits of its significand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row

_LOW = np.uint32(0x1FFF)


def to_tf32(row: Row, rounding: str) -> NDArray[np.uint32]:
    """Convert float32 to bits of tf32: "rna" (ties away from zero), "rn" (ties to even) or "rz".

    The result has at least one dimension.

    .rna is not a separate instruction on sm_90: ptxas adds and masks, so that NaN loses low bits like any number, and a
    NaN with no higher bits becomes infinity. With the other modes NaN becomes 0x7fffffff.
    """
    bits = np.atleast_1d(row).view(np.uint32)
    if rounding == "rna":
        rounded = bits + np.uint32(0x1000)
    elif rounding == "rz":
        rounded = bits
    else:
        rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    nan = bits & ~_LOW if rounding == "rna" else np.uint32(0x7FFFFFFF)
    return np.where(np.isfinite(row), rounded & ~_LOW, np.where(np.isnan(row), nan, bits))
