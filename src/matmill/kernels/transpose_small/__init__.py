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
from matmill.problem import Geam, View

VECTOR_BYTES = 16
#: Elements of one matrix up to which a run holds several, and bytes of a run.
_SMALL, _RUNS = 2048, (4096, 8192)
_THREADS = 128
#: Registers for addresses and counters, besides those of what is loaded.
_OTHERS = 40
_MOST_BLOCKS = 2**31 - 1


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``; none where it is not many small matrices."""
    if _wrong_layout(problem) is not None:
        return ()
    size, elements = problem.dtype.itemsize, problem.m * problem.n
    v = VECTOR_BYTES // size
    unit = v // gcd(v, elements)  # matrices that are whole vectors together
    found: dict[Config, None] = {}
    for nbytes in _RUNS:
        matrices = max(unit, nbytes // (elements * size) // unit * unit)
        config = Config.of(
            M=problem.m,
            N=problem.n,
            G=matrices,
            THREADS=_THREADS,
            PLAIN=int(problem.plain),
            HAS_Y=int(problem.y is not None),
        )
        config = config.replace(SHARED_BYTES=shared_bytes(config, size))
        slots = ceil_div(matrices * elements // v, _THREADS)
        registers = min(255, _OTHERS + 4 * slots * (1 + config["HAS_Y"]))
        by_shared = arch.shared_per_sm // (config["SHARED_BYTES"] + arch.shared_reserved)
        resident = min(arch.registers_per_sm // (registers * _THREADS), by_shared, arch.threads_per_sm // _THREADS)
        found[config.replace(BLOCKS_PER_SM=max(1, min(resident, arch.blocks_per_sm)))] = None
    return tuple(found)


def shared_bytes(config: Config, itemsize: int) -> int:
    """Dynamic shared memory of one block. The device asserts the same."""
    return ceil_div(config["G"] * config["N"] * (config["M"] | 1) * itemsize, VECTOR_BYTES) * VECTOR_BYTES


def _wrong_layout(problem: Geam) -> str | None:
    m, n = problem.m, problem.n
    if problem.batch < 2 or m * n > _SMALL:
        return f"{problem.batch} matrices of {m} x {n} are not many small ones"
    along = View((n, 1), m * n)
    for name, view, wanted in (("X", problem.x, (1, m)), ("Y", problem.y or along, (n, 1)), ("D", problem.d, (n, 1))):
        if not _packed(view, wanted, (m, n)):
            return f"{name} with strides {view.strides} and {view.batch} between matrices is not packed"
    return None


def _packed(view: View, wanted: tuple[int, int], shape: tuple[int, int]) -> bool:
    """Whether a view's strides are those wanted; a stride that is never stepped over may be any."""
    steps = zip(view.strides, wanted, shape, strict=True)
    return view.batch == shape[0] * shape[1] and all(own == right or extent == 1 for own, right, extent in steps)


def _runs(problem: Geam, config: Config) -> int:
    return ceil_div(problem.batch, config["G"])


def _against(problem: Geam, config: Config, arch: Arch) -> str | None:
    reason = _wrong_layout(problem)
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
    config=Config.of(M=4, N=4, G=64, THREADS=_THREADS, PLAIN=0, HAS_Y=1, SHARED_BYTES=5120, BLOCKS_PER_SM=8),
    geometry=_geometry,
    arguments=_arguments,
    legality=_against,
)
