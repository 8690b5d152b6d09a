"""Partial sums in a workspace: the launches around a long sum, as ``include/matmill/inner/outputs.cuh`` defines them.

A kernel that splits k over blocks leaves one sum per output and block in the workspace, in the type that the element
type is summed in (``DType.accumulator``); ``finish`` adds them in fixed order and makes D of them, or the last block
of the kernel's own launch does (``include/matmill/inner/last_block.cuh``). Kernels that add
atomically keep one sum per output, which ``clear`` sets to zero first. Where k itself comes in pieces, ``carry`` adds
each piece's sums to a running total.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.execute import Argument, Pointer
from matmill.kernel import GemmOperands, Geometry, Stage, ceil_div
from matmill.problem import Gemm

_CLEAR = 256  # threads of a block of `clear`
#: Outputs of a block, and threads that share the partial sums of each, by entry point; the header says the same.
_FINISH, _SHARE, _JOIN = (32, 16), (64, 4), (256, 1)
#: The most parts that `join` adds, which are what its threads load at once, and the fewest outputs of `share`: with
#: more, an H200 has no room for all of the threads of `finish` at once.
_FEW, _MANY = 16, 2**13
_VECTOR, _LINE, _APART = 16, 128, 32  # bytes: of loads, of a line, and what is put between whole lines
#: Bytes of partial sums that one block adds: on an H200 it takes as long as a second launch where they are 60 to 90 KB,
#: and 2 us longer where they are 256, which a host may still save.
MOST_ADDED_BY_ONE = 320 * 1024

Needed = Callable[[Gemm, Config], bool]


def workspace(operands: GemmOperands) -> Pointer:
    """Where the sums lie, or null where none are kept; ``Kernel.launches`` sees to it that it is there when needed."""
    return operands.workspace or Pointer("no workspace", 0)


def counter(operands: GemmOperands) -> Pointer:
    """Where blocks count themselves, or null where the partial sums are left to a second launch."""
    return operands.counter or Pointer("no counter", 0)


def padded_bytes(problem: Gemm, config: Config) -> int:
    """:func:`partials_bytes` where each block's sums are padded for one block to add, as the header says."""
    own = ceil_div(problem.m * problem.n * problem.dtype.accumulator.itemsize, _VECTOR) * _VECTOR
    return config["GS"] * problem.batch * (own if own % _LINE else own + _APART)


def sums_bytes(problem: Gemm, _config: Config) -> int:
    """Bytes of one sum per output of the batch."""
    return problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize


def partials_bytes(problem: Gemm, config: Config) -> int:
    """Bytes of one sum per output and block."""
    return config["GS"] * sums_bytes(problem, config)


def splits(blocks: int, most: int, per_sm: int, arch: Arch) -> list[int]:
    """Parts of k worth considering where ``blocks`` make D and each multiprocessor holds ``per_sm`` of them.

    One; and as many as give every multiprocessor one block, or all that it holds at once, but at most ``most``.

    >>> from matmill.arch import get
    >>> splits(16, 100, 2, get("h200")), splits(200, 100, 2, get("h200")), splits(1, 5, 1, get("h200"))
    ([1, 8, 16], [1], [1, 5])
    """
    room = {arch.sms * resident // blocks for resident in {1, per_sm}}
    return sorted({1, *(max(1, min(parts, most)) for parts in room)})


def uncounted(problem: Gemm, config: Config) -> str | None:
    """Why the partial sums of one product are too many for the launch that adds them, or None."""
    if config["GS"] > 1 and problem.m * problem.n >= 2**31:
        return f"{problem.m} x {problem.n} partial sums are more than are counted in 32 bits"
    return None


def split_bytes(problem: Gemm, config: Config) -> int:
    """:func:`partials_bytes`, or none where k is whole: the one block of a tile then makes D itself."""
    return 0 if config["GS"] == 1 else partials_bytes(problem, config)


def _clear_geometry(problem: Gemm, _config: Config) -> Geometry:
    return Geometry(grid=(ceil_div(problem.m * problem.n, _CLEAR), 1, 1), block=(_CLEAR, 1, 1))


def _clear_arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return (workspace(operands), np.int32(problem.m * problem.n))


def _by(outputs: int, ways: int) -> Callable[[Gemm, Config], Geometry]:
    """The launch whose blocks make so many outputs, in so many threads each."""

    def geometry(problem: Gemm, _config: Config) -> Geometry:
        blocks = ceil_div(problem.m * problem.n, outputs)
        return Geometry(grid=(blocks, problem.batch, 1), block=(outputs * ways, 1, 1))

    return geometry


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

    return Stage("finish", _by(*_FINISH), arguments, needed, early=True)


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


def _unmirrored(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    *arguments, _mirrored = FINISH_PARTIALS.arguments(problem, config, operands)
    return tuple(arguments)


def _adder(problem: Gemm, config: Config) -> str:
    """The entry point that adds ``problem``'s partial sums, or none where k is whole."""
    if config["GS"] <= _FEW:
        return "join" if config["GS"] > 1 else ""
    return "share" if problem.batch * problem.m * problem.n >= _MANY else "finish"


#: After a kernel that makes D itself where k is whole: few partial sums of an output are one thread's work, many are
#: shared. On an H200 16 threads to each of 512 x 512 outputs of 8 parts take longer than the product saves, and 16 to
#: each of 128 x 128 outputs of 33 parts 2 us longer than 4.
JOINED: tuple[Stage[Gemm], ...] = (
    Stage("join", _by(*_JOIN), _unmirrored, lambda *asked: _adder(*asked) == "join", early=True),
    Stage("share", _by(*_SHARE), _unmirrored, lambda *asked: _adder(*asked) == "share", early=True),
    finish(lambda config: config["GS"], needed=lambda *asked: _adder(*asked) == "finish"),
)
#: Adds the partial sums of one piece of k to the totals at D, which start as zeros: an array of sums, not of elements,
#: packed, and of the accumulator's type. One product, no batch.
CARRY: Stage[Gemm] = Stage("carry", _by(*_FINISH), _carry_arguments)
