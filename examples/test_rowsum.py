"""A test of rowsum.cu that needs no GPU: the fixture comes with matmill."""

from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "rowsum.cu"


def test_rows_are_summed(emulate: Any) -> None:
    x, sums = np.ones((4, 1000), np.float32), np.zeros(4, np.float32)
    emulate(FILE, "rowsum", 4, 128, x, sums, 1000)
    assert (sums == 1000).all()
