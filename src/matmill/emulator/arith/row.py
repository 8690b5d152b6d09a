"""A row: the values of one register, or of one operand, over many lanes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = NDArray[Any]
Mask: TypeAlias = NDArray[np.bool_]
