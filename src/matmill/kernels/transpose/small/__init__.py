"""Transpose-add of many small packed matrices: a block processes a chunk of them, where tiles would be mostly empty.

X, Y and D are packed one matrix after the other: X's n x m matrices row by row, Y's and D's m x n matrices row by row.
If Y's matrices are n x m and X's are not, the kernel exchanges X and Y (SWAPPED).
"""

from __future__ import annotations

from math import gcd

from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.shared.bank_padding import VECTOR_BYTES, best, steady
from matmill.kernels.transpose.chunks import (
    assign_threads,
    chunks_ahead,
    elements,
    gather_registers,
    launch,
    one_chunk_registers,
    shared_bytes,
    transposed_first,
)
from matmill.kernels.transpose.cost import explain
from matmill.kernels.transpose.tiles import factors
from matmill.launch import Argument, Pointer
from matmill.lowering import many_small
from matmill.parameters import Parameters
from matmill.problem import Geam

#: Vectors of a chunk, about; each has its own thread.
_VECTORS = (128, 256)
#: Registers of a vector, and of a thread besides its vectors and their offsets.
_VECTOR_REGISTERS, _OTHERS = 4, 23


def space(problem: Geam, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering for ``problem`` on ``arch``.

    There is none unless the problem consists of many small matrices.
    """
    if many_small(problem) is not None:
        return ()
    size, elements = problem.dtype.itemsize, problem.m * problem.n
    v = VECTOR_BYTES // size
    unit = v // gcd(v, elements)  # matrices that are whole vectors together
    configs: dict[Config, None] = {}
    for wanted in _VECTORS:
        matrices = max(unit, wanted * v // elements // unit * unit)
        vectors = matrices * elements // v
        every, padding = best(problem.m, problem.n, size, vectors, arch.shared_per_block // 2)
        chunk = Config.of(
            M=problem.m,
            N=problem.n,
            G=matrices,
            PAD_EVERY=every,
            PAD_VECTORS=padding,
            STEADY=int(steady(problem.m, problem.n, v, every)),
            PLAIN=int(problem.plain),
            HAS_Y=int(problem.y is not None),
            SWAPPED=int(problem.y_transposed),
        )
        for ahead in chunks_ahead(chunk, size, 1):
            config = chunk.replace(AHEAD=ahead, SHARED_BYTES=shared_bytes(vectors, every, padding, 1 + ahead))
            assigned = assign_threads(config, vectors, lambda one: _registers(one, size), arch)
            if assigned is not None:
                configs[assigned] = None
    return tuple(configs)


def _registers(config: Config, itemsize: int) -> int:
    """Return the registers that the assembler takes for sm_90a, or a few more."""
    if config["AHEAD"] == 0:
        return one_chunk_registers(config, itemsize)
    v = VECTOR_BYTES // itemsize
    offsets = 1 if config["STEADY"] else v
    vectors = _VECTOR_REGISTERS * (1 + config["HAS_Y"])
    each = ceil_div(elements(config), v * config["THREADS"])  # vectors that a thread makes
    return _OTHERS + each * (vectors + offsets) + gather_registers(itemsize, each)


def _why_not(problem: Geam, config: Config, arch: Arch) -> str | None:
    reason = many_small(problem)
    if reason is not None:
        return reason
    constants = tuple(config[name] for name in ("M", "N", "PLAIN", "HAS_Y", "SWAPPED"))
    if constants != (problem.m, problem.n, problem.plain, problem.y is not None, problem.y_transposed):
        m, n, plain, has_y, swapped = constants
        return f"constants for {m} x {n}, plain {plain}, with Y {has_y}, swapped {swapped}"
    return None if arch.compiles else f"{arch.title} is older than the compiler"


def _geometry(problem: Geam, config: Config) -> Geometry:
    return launch(config, ceil_div(problem.batch, config["G"]))


def _arguments(problem: Geam, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    problem, operands = transposed_first(problem, operands)
    return _PARAMETERS.pack(
        problem.dtype,
        X=operands.a,
        Y=Pointer("none", 0) if problem.y is None else operands.b,
        D=operands.d,
        total=problem.batch * problem.m * problem.n,
        **factors(problem, operands),
    )


#: ``total`` is the number of all elements.
_PARAMETERS = Parameters.of(X="const Scalar*", Y="const Scalar*", D="Scalar*", total="Index", alpha="Acc", beta="Acc")
TRANSPOSE_SMALL: Kernel[Geam] = Kernel(
    entry="transpose_small",
    package=__name__,
    config=Config.of(
        M=4,
        N=4,
        G=32,
        THREADS=128,
        PAD_EVERY=4,
        PAD_VECTORS=0,
        STEADY=1,
        PLAIN=0,
        HAS_Y=1,
        SWAPPED=0,
        AHEAD=1,
        SHARED_BYTES=4096,
        BLOCKS_PER_SM=8,
        BLOCKS=1056,
    ),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    pdl=True,
    parameters=_PARAMETERS,
)

PRODUCTION: Production[Geam] = Production(TRANSPOSE_SMALL, space, explain)
