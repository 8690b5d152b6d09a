"""Transpose+add of many small packed matrices: a run of them is one block's work, where tiles would be mostly empty.

X, Y and D are packed one matrix behind the other: X's n x m matrices row by row, Y's and D's m x n matrices row by row.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.execute import Argument, Pointer
from matmill.kernel import GemmOperands, Geometry, Kernel, ceil_div
from matmill.layout import many_small
from matmill.problem import Geam

VECTOR_BYTES = 16
#: Bytes of a run, about.
_RUNS = (4096, 8192)
_THREADS = (128, 256)
#: Vectors of a thread, whose places are all worked out at once.
_MOST_SLOTS = 4
#: Registers by elements of a vector: each has a place of its own to be worked out.
_REGISTERS = {2: 80, 4: 112, 8: 168, 16: 255}
_MOST_BLOCKS = 2**31 - 1


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``; none where it is not many small matrices."""
    if many_small(problem) is not None:
        return ()
    size, elements = problem.dtype.itemsize, problem.m * problem.n
    v = VECTOR_BYTES // size
    unit = v // gcd(v, elements)  # matrices that are whole vectors together
    found: dict[Config, None] = {}
    for nbytes in _RUNS:
        matrices = max(unit, nbytes // (elements * size) // unit * unit)
        # As few threads as leave each of them a few vectors at the most.
        threads = next((n for n in _THREADS if ceil_div(matrices * elements // v, n) <= _MOST_SLOTS), _THREADS[-1])
        config = Config.of(
            M=problem.m,
            N=problem.n,
            G=matrices,
            THREADS=threads,
            PLAIN=int(problem.plain),
            HAS_Y=int(problem.y is not None),
        )
        config = config.replace(SHARED_BYTES=shared_bytes(config, size))
        by_shared = arch.shared_per_sm // (config["SHARED_BYTES"] + arch.shared_reserved)
        resident = min(arch.registers_per_sm // (_REGISTERS[v] * threads), by_shared, arch.threads_per_sm // threads)
        found[config.replace(BLOCKS_PER_SM=max(1, min(resident, arch.blocks_per_sm)))] = None
    return tuple(found)


def shared_bytes(config: Config, itemsize: int) -> int:
    """Dynamic shared memory of one block. The device asserts the same."""
    return ceil_div(config["G"] * config["N"] * (config["M"] | 1) * itemsize, VECTOR_BYTES) * VECTOR_BYTES


def _runs(problem: Geam, config: Config) -> int:
    return ceil_div(problem.batch, config["G"])


def _against(problem: Geam, config: Config, arch: Arch) -> str | None:
    reason = many_small(problem)
    if reason is not None:
        return reason
    constants = (config["M"], config["N"], config["PLAIN"], config["HAS_Y"])
    if constants != (problem.m, problem.n, int(problem.plain), int(problem.y is not None)):
        return f"constants for {config['M']} x {config['N']}, plain {config['PLAIN']}, with Y {config['HAS_Y']}"
    if _runs(problem, config) > _MOST_BLOCKS:
        return f"{_runs(problem, config)} runs > {_MOST_BLOCKS}"
    return None if arch.compiles else f"{arch.title} is older than the compiler"


def _geometry(problem: Geam, config: Config) -> Geometry:
    return Geometry((_runs(problem, config), 1, 1), (config["THREADS"], 1, 1), config["SHARED_BYTES"])


def _arguments(problem: Geam, operands: GemmOperands) -> tuple[Argument, ...]:
    wide = problem.dtype.accumulator
    return (
        operands.a,
        Pointer("none", 0) if problem.y is None else operands.b,
        operands.d,
        np.int64(problem.batch * problem.m * problem.n),
        wide.scalar(operands.alpha),
        wide.scalar(operands.beta),
    )


TRANSPOSE_SMALL: Kernel[Geam] = Kernel(
    entry="transpose_small",
    package=__name__,
    config=Config.of(M=4, N=4, G=64, THREADS=128, PLAIN=0, HAS_Y=1, SHARED_BYTES=5120, BLOCKS_PER_SM=8),
    geometry=_geometry,
    arguments=_arguments,
    legality=_against,
)
