"""The transpose+add ladder: D = alpha * X + beta * Y, X transposed, from an article's two kernels to any pitch."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.transpose_add.shifted import SHIFTED
from matmill.ladder.transpose_add.v1 import V1
from matmill.ladder.transpose_add.v2 import V2
from matmill.ladder.transpose_add.wide import WIDE
from matmill.problem import Geam

TRANSPOSE_ADD: tuple[Rung[Geam], ...] = (V1, V2, WIDE, SHIFTED)
