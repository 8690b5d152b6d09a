"""Partial sums in a workspace: the launches around a long sum, as ``include/matmill/inner/outputs.cuh`` defines them.

A kernel that splits k over blocks leaves one sum per output and block in the workspace, in the type that the element
type is summed in (``DType.accumulator``); ``finish`` adds them in fixed order and makes D of them. Kernels that add
atomically keep one sum per output, which ``clear`` sets to zero first. Where k itself comes in pieces, ``carry`` adds
each piece's sums to a running total.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.config import Config
from matmill.execute import Argument, Pointer
from matmill.kernel import GemmOperands, Geometry, Stage, ceil_div
from matmill.problem import Gemm

_CLEAR = 256  # threads of a block of `clear`
_OUTPUTS, _WAYS = 32, 16  # of a block of `finish` and `carry`; the header says the same

Needed = Callable[[Gemm, Config], bool]


def workspace(operands: GemmOperands) -> Pointer:
    """Where the sums lie, or null where none are kept; ``Kernel.launches`` sees to it that it is there when needed."""
    return operands.workspace or Pointer("no workspace", 0)


def sums_bytes(problem: Gemm, _config: Config) -> int:
    """Bytes of one sum per output of the batch."""
    return problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize


def partials_bytes(problem: Gemm, config: Config) -> int:
    """Bytes of one sum per output and block."""
    return config["GS"] * sums_bytes(problem, config)


def _clear_geometry(problem: Gemm, _config: Config) -> Geometry:
    return Geometry(grid=(ceil_div(problem.m * problem.n, _CLEAR), 1, 1), block=(_CLEAR, 1, 1))


def _clear_arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (workspace(operands), np.int32(problem.m * problem.n))


def _by_outputs(problem: Gemm, _config: Config) -> Geometry:
    blocks = ceil_div(problem.m * problem.n, _OUTPUTS)
    return Geometry(grid=(blocks, problem.batch, 1), block=(_OUTPUTS * _WAYS, 1, 1))


def finish(count: Callable[[Config], int], *, mirrored: bool = False, needed: Needed | None = None) -> Stage[Gemm]:
    """The launch that makes D of ``count`` partial sums per output.

    ``mirrored`` says that there are none below the diagonal.
    """

    def arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
        return (
            workspace(operands),
            np.int32(count(config)),
            operands.c,
            *c_strides(problem),
            operands.d,
            *d_strides(problem),
            np.int32(problem.m),
            np.int32(problem.n),
            *scalars(problem, operands),
            np.int32(mirrored),
        )

    return Stage("finish", _by_outputs, arguments, needed)


def c_strides(problem: Gemm) -> tuple[Argument, ...]:
    """C's strides in elements: row, column, batch."""
    return tuple(np.int64(stride) for stride in (*problem.c_row_col, problem.batch_strides[2]))


def d_strides(problem: Gemm) -> tuple[Argument, ...]:
    """D's strides in elements: row, column, batch."""
    return tuple(np.int64(stride) for stride in (*problem.d_row_col, problem.batch_strides[3]))


def scalars(problem: Gemm, operands: GemmOperands) -> tuple[Argument, ...]:
    """Alpha and beta, as wide as the sums: they round to the element type only as parts of the result."""
    wide = problem.dtype.accumulator
    return wide.scalar(operands.alpha), wide.scalar(operands.beta)


CLEAR: Stage[Gemm] = Stage("clear", _clear_geometry, _clear_arguments)
#: After atomic adds, after one partial sum per block, and after those of the upper triangle alone.
FINISH = finish(lambda _config: 1)
FINISH_PARTIALS = finish(lambda config: config["GS"])
FINISH_TRIANGLE = finish(lambda config: config["GS"], mirrored=True)


def _carry_arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (workspace(operands), np.int32(config["GS"]), operands.d, np.int32(problem.m * problem.n))


#: Adds the partial sums of one piece of k to the totals at D, which start as zeros: an array of sums, not of elements,
#: packed, and of the accumulator's type. One product, no batch.
CARRY: Stage[Gemm] = Stage("carry", _by_outputs, _carry_arguments)
