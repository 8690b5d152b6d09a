"""The shapes whose times are published: the article's, and forty others of every element type, pitch and batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from matmill.dtypes import BF16, ELEMENTWISE, F16, F32, F64, I8, I32, DType
from matmill.ladders.transpose_add.subject import ARTICLE

#: Bytes from which on a call is long enough for its bandwidth to be judged.
LONG = 64 * 10**6
#: Bytes up to which calls are timed by the graph and by the loop as well: what the caches of a GPU hold.
SHORT = 8 * 10**6


@dataclass(frozen=True)
class Shape:
    """x of ``m`` rows and ``n`` columns, transposed, plus y, for each of a batch of such matrices.

    ``x_pad`` and ``y_pad`` are elements between the end of a row and the start of the next one. ``kind`` groups shapes
    in tables.
    """

    kind: str
    m: int
    n: int
    dtype: DType
    batch: int = 1
    x_pad: int = 0
    y_pad: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that must move: every operand once."""
        return 3 * prod((self.batch, self.m, self.n, self.dtype.itemsize))

    def record(self) -> dict[str, Any]:
        """Describe the shape as JSON holds it; :meth:`restored` reads it back."""
        return {**asdict(self), "dtype": self.dtype.name}

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Shape:
        """Return the shape that a record describes.

        >>> Shape.restored(SHAPES[0].record()) == SHAPES[0]
        True
        """
        return cls(**{**record, "dtype": ELEMENTWISE[record["dtype"]]})

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch > 1 else ""
        pads = f", rows {self.x_pad} and {self.y_pad} apart" if self.x_pad or self.y_pad else ""
        return f"{times}{self.m}x{self.n} {self.dtype.name}{pads}"


CASE = Shape("article", *ARTICLE, BF16)

SHAPES: tuple[Shape, ...] = (
    Shape("square", 4096, 4096, F32),
    Shape("square", 8192, 8192, BF16),
    Shape("square", 8192, 8192, F16),
    Shape("square", 8192, 8192, F64),
    Shape("square", 16384, 16384, I8),
    Shape("square", 8192, 8192, I32),
    Shape("square", 2048, 2048, F32),
    Shape("odd", 8191, 8191, BF16),
    Shape("odd", 8191, 8193, F32),
    Shape("odd", 4095, 4097, F64),
    Shape("odd", 16383, 12001, I8),
    Shape("odd", 8190, 6666, F16),
    Shape("odd", 5001, 7003, I32),
    Shape("tall", 1_000_000, 64, F32),
    Shape("tall", 1_000_000, 17, BF16),
    Shape("tall", 2_000_000, 8, F16),
    Shape("tall", 500_000, 100, F64),
    Shape("tall", 4_000_000, 3, F32),
    Shape("tall", 3_000_000, 30, I8),
    Shape("wide", 64, 1_000_000, F32),
    Shape("wide", 17, 1_000_000, BF16),
    Shape("wide", 8, 2_000_000, F16),
    Shape("wide", 100, 500_000, I32),
    Shape("wide", 3, 4_000_000, F64),
    Shape("wide", 30, 3_000_000, I8),
    Shape("batch", 1024, 1024, F32, batch=64),
    Shape("batch", 64, 64, BF16, batch=4096),
    Shape("batch", 100, 100, F64, batch=1000),
    Shape("batch", 2000, 3000, F16, batch=16),
    Shape("batch", 333, 217, BF16, batch=500),
    Shape("batch", 32, 32, I8, batch=20_000),
    Shape("batch", 128, 128, I32, batch=2048),
    Shape("pitch", 8192, 8192, F32, x_pad=1, y_pad=1),
    Shape("pitch", 8192, 8192, BF16, x_pad=3, y_pad=5),
    Shape("pitch", 6000, 7000, I8, x_pad=1, y_pad=7),
    Shape("pitch", 4000, 5000, F64, x_pad=1),
    Shape("tiny", 64, 64, F32),
    Shape("tiny", 256, 256, BF16),
    Shape("tiny", 512, 100, F16),
    Shape("tiny", 777, 500, I32),
)

GROUPS: dict[str, tuple[Shape, ...]] = {"article": (CASE,), "shapes": SHAPES}
