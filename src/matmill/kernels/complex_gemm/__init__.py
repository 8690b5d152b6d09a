"""Products of small matrices of complex elements in one launch: nothing is expanded, and each matrix is read once.

One program per element type takes every problem, whose extents and layouts are arguments.
"""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.shared.complex_cost import explain
from matmill.kernels.shared.outputs import complex_factor
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import ComplexGemm

_CONFIG = Config.of(THREADS=256)
_STRIDES = tuple(f"{matrix}_{axis}" for matrix in "abcd" for axis in ("row", "column", "batch"))
_PARAMETERS = Parameters.of(
    **dict.fromkeys("ABC", "const Scalar*"),
    D="Scalar*",
    **dict.fromkeys((*_STRIDES, "batch"), "Index"),
    **dict.fromkeys(("m", "n", "k", "conjugate_a", "conjugate_b"), "int"),
    alpha="Acc",
    beta="Acc",
)


def _geometry(problem: ComplexGemm, config: Config) -> Geometry:
    matrices = config["THREADS"] // (problem.m * problem.n)
    return Geometry(grid=(ceil_div(problem.batch, matrices), 1, 1), block=(config["THREADS"], 1, 1))


def _arguments(problem: ComplexGemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    conjugates, (alpha_im, beta_im) = problem.conjugates, operands.imaginary
    return _PARAMETERS.pack(
        problem.dtype,
        A=operands.a,
        B=operands.b,
        C=operands.c if problem.has_c else Pointer("none", 0),
        D=operands.d,
        **dict(zip(_STRIDES, (step for steps in problem.strides for step in steps), strict=True)),
        batch=problem.batch,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        conjugate_a=int("a" in conjugates),
        conjugate_b=int("b" in conjugates),
        alpha=complex_factor(problem.dtype, operands.alpha, alpha_im),
        beta=complex_factor(problem.dtype, operands.beta, beta_im, conjugate="c" in conjugates),
    )


def _why_not(problem: ComplexGemm, config: Config, _arch: object) -> str | None:
    if problem.m * problem.n > config["THREADS"]:
        return f"{problem.m} x {problem.n} elements, and {config['THREADS']} threads"
    return None


COMPLEX_GEMM: Kernel[ComplexGemm] = Kernel(
    "complex_gemm", __name__, _CONFIG, _geometry, _arguments, _why_not, pdl=True, parameters=_PARAMETERS
)
PRODUCTION: Production[ComplexGemm] = Production(
    COMPLEX_GEMM, lambda _problem, _arch: (_CONFIG,), explain, general=lambda _problem, _arch: _CONFIG
)
