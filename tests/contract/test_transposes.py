"""The contract of every kernel that transposes and adds: a table of sums, the same for all executors.

Whatever the layout, type, pitch and start, every bit is that of the sum, nothing else is written, and nothing races.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from matmill.dtypes import ELEMENTWISE, TRANSPOSES, DType
from matmill.kernel import Kernel, Production
from matmill.problem import Geam
from matmill.registry import TRANSPOSE_ADD_KERNELS
from support.chunked import in_blocks
from support.examples import examples
from support.executors import Executor
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_sum import Layouts, StridedSum

TILES, SMALL, SLIM = TRANSPOSE_ADD_KERNELS
#: A type of each size. The others of their sizes are moved alike.
SIZED = tuple(TRANSPOSES[name] for name in ("int8", "bfloat16", "float32", "float64", "complex128"))
#: Conjugates of complex elements, and factors in place of 1, by a row's number.
CONJUGATES, FACTORS = ("", "X", "XY"), (1.0, -1j, 2 - 1j)


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
    # Columns start on 16 bytes, rows anywhere: words of D are of two words of X.
    Sum((1, 64, 67)),
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
#: Rows of D start off 16 bytes, and are whole chunks: each row ends in one chunk more.
SHIFTED = Sum((1, 8, 1024), d=Layout(start=1))
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
    """A sum of a type, and a number among the kernel's configurations."""

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
            for dtype in TRANSPOSES.values() if index == 1 else SIZED:
                yield Row(kernel, one, dtype, index % 3)


@pytest.mark.parametrize("row", list(_rows()), ids=str)
def test_sums_of_any_layout_and_type(row: Row, executor: Executor) -> None:
    one = row.sum
    result = _sum(one.shape, row.dtype, (one.x, one.y, one.d), one.scalars, row.number, in_place=one.in_place)
    executor.check(result, _kernel(row.kernel, result, row.number), twice=row.number == 1)


@pytest.mark.parametrize("sum_", [*LONG[:2], LONG[5], LONG[8], SHIFTED, *MANY[:2]], ids=str)
@pytest.mark.parametrize(("blocks", "ahead"), [(1, 1), (3, 1), (1, 2)])
def test_few_blocks_process_several_chunks(sum_: Sum, blocks: int, ahead: int, executor: Executor) -> None:
    result = StridedSum(sum_.shape, ELEMENTWISE["float32"], (sum_.x, sum_.y, sum_.d), sum_.scalars)
    kernel = _kernel(SMALL if sum_ in MANY else SLIM, result, 0)
    if ahead == 2 and (kernel.entry == "transpose_small" or kernel.config["Y_WIDTH"] < 4):
        pytest.skip("one chunk ahead is all that this kernel takes")
    executor.check(result, in_blocks(kernel, result.problem, blocks, ahead))


def _sum(
    shape: tuple[int, int, int], dtype: DType, layouts: Layouts, scalars: tuple[float, float], number: int,
    *, in_place: bool,
) -> StridedSum:  # fmt: skip
    """Return a sum, of complex elements with conjugates and factors by a number."""
    if dtype.part is None:
        return StridedSum(shape, dtype, layouts, scalars, in_place=in_place)
    factors = scalars[0] * FACTORS[number], scalars[1] * FACTORS[-number]
    conjugates = CONJUGATES[number][: 2 if layouts[1] else 1]
    return StridedSum(shape, dtype, layouts, factors, in_place=in_place, conjugates=conjugates)


def _kernel(production: Production[Geam], result: StridedSum, number: int) -> Kernel[Geam]:
    """Return a configuration of a kernel: of three numbers each is of another third of them."""
    configs = production.space(result.problem, H200)
    assert configs
    return production.kernel.with_config(configs[number * len(configs) // 3])


@st.composite
def _any_sums(draw: st.DrawFn) -> tuple[StridedSum, Kernel[Geam]]:
    """Draw a sum of a shape that a kernel is for, with rows and starts anywhere, and one of its configurations."""
    production = draw(st.sampled_from([TILES, TILES, SLIM, SMALL]))
    start, pad = st.sampled_from([0, 0, 1, 3, 8]), st.sampled_from([0, 0, 1, 2, 7, 16])
    step = st.sampled_from([1, 1, 1, 2]) if production is TILES else st.just(1)
    x, y, d = (Layout(pad=draw(pad), step=draw(step), start=draw(start)) for _ in "XYD")
    if production is TILES:
        shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 150), st.integers(1, 150)))
        x, y = (replace(one, transposed=draw(st.booleans())) for one in (x, y))
    elif production is SLIM:
        short = draw(st.integers(2, 40))
        long, wide = draw(st.integers(16 * short, 3000)), draw(st.booleans())
        shape = (1, short, long) if wide else (1, long, short)
        x = replace(x, transposed=True, pad=0 if wide else x.pad)
        y, d = (replace(one, pad=one.pad if wide else 0) for one in (y, d))
    else:
        shape = draw(st.tuples(st.integers(2, 300), st.integers(2, 20), st.integers(2, 20)))
        x, y, d = (Layout(transposed=transposed, start=d.start) for transposed in (True, False, False))
    summed, in_place = draw(st.sampled_from([(False, False), (True, False), (True, False), (True, True)]))
    if summed and not in_place and production is not TILES and draw(st.booleans()):
        x, y = y, x
    scalars = draw(st.sampled_from([1.0, -2.0])), draw(st.sampled_from([1.0, 3.0]))
    dtype, number = draw(st.sampled_from(list(TRANSPOSES.values()))), draw(st.integers(0, 2))
    result = _sum(shape, dtype, (x, y if summed else None, d), scalars, number, in_place=in_place)
    configs = production.space(result.problem, H200)
    assume(configs)
    kernel = production.kernel.with_config(draw(st.sampled_from(configs)))
    if production is TILES:
        return result, kernel.with_config(kernel.config.replace(FAR=draw(st.sampled_from([kernel.config["FAR"], 1]))))
    blocks = draw(st.sampled_from([None, 1, 3]))
    return result, kernel if blocks is None else in_blocks(kernel, result.problem, blocks)


@examples(14, ignore=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(_any_sums())
def test_any_sum(executor: Executor, drawn: tuple[StridedSum, Kernel[Geam]]) -> None:
    executor.check(*drawn, twice=False)
