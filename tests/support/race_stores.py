"""What the steps of the race detector's tests store: never what another step or another warp stored there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.races.detector import Stores


def distinct(warps: NDArray[np.int64], width: int, *, agreed: bool) -> Stores:
    """Return stores of a value for each warp, the same in all of its lanes where they ``agreed``. Warps are few."""
    lanes = np.zeros(32, np.int64) if agreed else np.arange(32) % 16
    values = (16 * warps[:, None] + lanes).astype(np.uint8)
    stored = np.repeat(values[:, :, None], width, axis=2)
    return Stores(warps, lambda: (stored, np.full_like(stored, 255)))
