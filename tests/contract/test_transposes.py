"""The contract of every kernel that transposes and adds: a table of sums, the same for all executors.

Whatever the layout, type, pitch and start, every bit is that of the sum, nothing else is written, and nothing races.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from matmill.dtypes import ELEMENTWISE, DType
from matmill.kernel import Production
from matmill.problem import Geam
from matmill.registry import TRANSPOSE_ADD_KERNELS
from support.executors import Executor
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_sum import StridedSum

TILES, SMALL, SLIM = TRANSPOSE_ADD_KERNELS
#: A type of each size. The others of their sizes are moved alike.
SIZED = tuple(ELEMENTWISE[name] for name in ("int8", "bfloat16", "float32", "float64"))


@dataclass(frozen=True)
class Sum:
    """X in columns and Y in rows unless it says otherwise; D's elements, and where they go."""

    shape: tuple[int, int, int]
    x: Layout = COLUMN
    y: Layout | None = ROW
    d: Layout = ROW
    scalars: tuple[float, float] = (1.0, 1.0)
    in_place: bool = False

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))


#: For tiles: few and many, rows and columns that start anywhere, a transpose alone, and Y in D's memory.
ANY = (
    Sum((1, 1, 1)),
    Sum((1, 64, 128)),
    Sum((1, 37, 201)),
    Sum((1, 50, 70), y=None),
    Sum((2, 70, 90), scalars=(2.0, -1.0), in_place=True),
    Sum((2, 70, 90), d=Layout(pad=1), scalars=(2.0, -1.0), in_place=True),
    Sum((2, 65, 200), y=Layout(pad=3, start=5), scalars=(1.0, -2.0)),
    Sum((2, 100, 137), x=Layout(transposed=True, pad=3, start=5), y=Layout(start=1), d=Layout(pad=1)),
    Sum((1, 67, 45), x=ROW, y=COLUMN, d=Layout(start=1)),
    Sum((1, 40, 30), x=Layout(transposed=True, step=2), y=Layout(step=3)),
)
#: One side below 64, tall and wide.
LONG = (
    Sum((1, 2, 1027), y=None),
    Sum((1, 1024, 5)),
    Sum((1, 8, 1024), scalars=(1.0, 3.0)),
    Sum((1, 1027, 17), x=ROW, y=COLUMN),
    Sum((1, 32, 1027), in_place=True),
    Sum((1, 1024, 5), x=Layout(transposed=True, start=8), y=Layout(start=8), d=Layout(start=1)),
    Sum((1, 5, 1024), y=Layout(start=2), scalars=(2.0, -1.0)),
    Sum((1, 1029, 7), x=Layout(transposed=True, pad=7)),
    Sum((1, 7, 1029), d=Layout(pad=1), y=None),
)
#: Many small matrices, packed one after the other.
MANY = (
    Sum((256, 8, 8)),
    Sum((64, 17, 31), y=None, scalars=(2.0, 1.0)),
    Sum((100, 2, 19), x=ROW, y=COLUMN),
    Sum((77, 7, 9), in_place=True, scalars=(-2.0, 3.0)),
    Sum((33, 20, 12), x=Layout(transposed=True, start=1), y=Layout(start=1), d=Layout(start=1)),
)


@dataclass(frozen=True)
class Row:
    """A sum of a type, a number among the kernel's configurations, and blocks that process several chunks each."""

    kernel: Production[Geam]
    sum: Sum
    dtype: DType
    number: int

    def __str__(self) -> str:
        return f"{self.kernel.kernel.entry} {self.sum} {self.dtype.name} {self.number}"


def _rows() -> Iterator[Row]:
    for kernel, sums in ((TILES, ANY), (SLIM, LONG), (SMALL, MANY)):
        for index, one in enumerate(sums):
            # One sum is of every type. Of the others each size has one.
            for dtype in ELEMENTWISE.values() if index == 1 else SIZED:
                yield Row(kernel, one, dtype, index % 3)


@pytest.mark.parametrize("row", list(_rows()), ids=str)
def test_sums_of_any_layout_and_type(row: Row, executor: Executor) -> None:
    one = row.sum
    result = StridedSum(one.shape, row.dtype, (one.x, one.y, one.d), one.scalars, in_place=one.in_place)
    configs = row.kernel.space(result.problem, H200)
    assert configs
    executor.check(
        result, row.kernel.kernel.with_config(configs[row.number * len(configs) // 3]), twice=row.number == 1
    )
