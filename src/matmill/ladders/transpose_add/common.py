"""The host code that rungs of the transpose+add ladder share: the article's launch, and tiles by cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.kernels.transpose import cost
from matmill.kernels.transpose.tiles import layout, tiles
from matmill.launch import Argument
from matmill.problem import Geam, View

VECTOR_BYTES = 16
_SIDE = 32


def _why_not(problem: Geam, pair: int) -> str | None:
    """Return why a kernel of the article does not take the operands, or None; ``pair`` is its elements per access."""
    size = problem.dtype.itemsize
    y = problem.y
    if problem.batch != 1 or y is None:
        return "one sum of two matrices is what it computes"
    if problem.x.strides[0] != 1 or problem.x.align < VECTOR_BYTES:
        return "X's columns are not contiguous, or do not all start on 16 bytes"
    if problem.d.strides[1] != 1 or y.strides[1] != 1:
        return "the rows of Y and D are not contiguous"
    if problem.n % pair or min(problem.d.align, y.align) < pair * size:
        return f"the rows of Y and D are not whole numbers of {pair} elements"
    return None


def _geometry(columns: int) -> Callable[[Geam, Config], Geometry]:
    def geometry(problem: Geam, _config: Config) -> Geometry:
        deep = _SIDE * VECTOR_BYTES // problem.dtype.itemsize
        grid = (ceil_div(problem.m, deep), ceil_div(problem.n, columns), 1)
        return Geometry(grid=grid, block=(_SIDE, _SIDE, 1))

    return geometry


def _arguments(problem: Geam, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    wide = problem.dtype.accumulator
    y = problem.y or View((0, 0))  # why_not refuses a problem without Y
    return (
        operands.a,
        operands.b,
        operands.d,
        np.int32(problem.m),
        np.int32(problem.n),
        *(np.int64(stride) for stride in (problem.x.strides[1], y.strides[0], problem.d.strides[0])),
        wide.scalar(operands.alpha),
        wide.scalar(operands.beta),
    )


def of_article(entry: str, file: str, *, elements: int) -> Kernel[Geam]:
    """Return a kernel of the article, whose lanes take ``elements`` neighbouring elements of a row of Y and D."""

    def why_not(problem: Geam, _config: Config, _arch: Arch) -> str | None:
        return _why_not(problem, elements)

    return Kernel(
        entry, "matmill.ladders.transpose_add", Config(), _geometry(_SIDE * elements), _arguments, why_not, file=file
    )


def tuned(*, shifted: bool) -> Callable[[Geam, Arch], Config]:
    """Return the tile that is predicted to be fastest, with rows ``shifted`` to 16-byte boundaries or not."""

    def tune(problem: Geam, arch: Arch) -> Config:
        candidates = tiles(problem, arch, layout(problem, shifted=shifted))
        return min(candidates, key=lambda config: cost.explain(problem, config, arch).seconds)

    return tune
