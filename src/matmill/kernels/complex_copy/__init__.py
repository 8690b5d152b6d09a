"""Copies of complex matrices, packed, conjugated, scaled or in real blocks: what a complex product adds to a real one.

One program per element type takes every problem. What a copy does to an element is an argument: its time is that of its
bytes. The operands' alpha and beta are the real and the imaginary part of the factor.
"""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, always, ceil_div
from matmill.kernels.shared.complex_cost import explain
from matmill.launch import Argument
from matmill.parameters import Parameters
from matmill.problem import ComplexCopy

#: Columns of a tile, at most, as a power of two: of complex64 their row is a cache line.
_WIDEST = 4
_CONFIG = Config.of(THREADS=256, EACH=4)
_BLOCKS = ("", "rows", "columns")
_INDICES = ("rows", "columns", "x_row", "x_column", "x_batch", "d_row", "d_column", "d_batch", "second")
_PARAMETERS = Parameters.of(
    X="const Scalar*",
    D="Scalar*",
    **dict.fromkeys(_INDICES, "Index"),
    **dict.fromkeys(("shift", "block", "conjugate", "negate"), "int"),
    scale_re="Acc",
    scale_im="Acc",
)


def _shift(problem: ComplexCopy) -> int:
    return min(_WIDEST, (problem.columns - 1).bit_length())


def _geometry(problem: ComplexCopy, config: Config) -> Geometry:
    shift, threads = _shift(problem), config["THREADS"]
    down = ceil_div(problem.rows, (threads >> shift) * config["EACH"])
    return Geometry(grid=(ceil_div(problem.columns, 1 << shift) * down, problem.batch, 1), block=(threads, 1, 1))


def _arguments(problem: ComplexCopy, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    indices = (problem.rows, problem.columns, *problem.x_strides, *problem.d_strides, problem.second)
    return _PARAMETERS.pack(
        problem.dtype,
        X=operands.a,
        D=operands.d,
        **dict(zip(_INDICES, indices, strict=True)),
        shift=_shift(problem),
        block=_BLOCKS.index(problem.block),
        conjugate=int(problem.conjugate),
        negate=int(problem.negate),
        scale_re=operands.alpha,
        scale_im=operands.beta,
    )


COMPLEX_COPY: Kernel[ComplexCopy] = Kernel(
    "complex_copy", __name__, _CONFIG, _geometry, _arguments, always, pdl=True, parameters=_PARAMETERS
)
PRODUCTION: Production[ComplexCopy] = Production(
    COMPLEX_COPY, lambda _problem, _arch: (_CONFIG,), explain, general=lambda _problem, _arch: _CONFIG
)
