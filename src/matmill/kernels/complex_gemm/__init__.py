"""Products of small matrices of complex elements in one launch: nothing is expanded, and each matrix is read once.

One program per element type takes every problem, whose extents and layouts are arguments.
"""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.shared.complex_cost import explain
from matmill.kernels.shared.outputs import complex_factor
from matmill.kernels.shared.tiled import STRIDED, strided_values
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: The most rows, columns and terms.
SMALL = 16
_CONFIG = Config.of(THREADS=SMALL * SMALL)
_PARAMETERS = Parameters((*STRIDED.fields, ("batch", "Index"), ("conjugate_a", "int"), ("conjugate_b", "int")))


def added(problem: Gemm, operands: GemmOperands, *, conjugate: bool = False) -> dict[str, Argument | float]:
    """Return C, null where there is none, and the factors: alpha of the sums, or of their conjugates, and beta of C."""
    (alpha_im, beta_im), conjugate_c = operands.imaginary, "c" in problem.conjugates
    return {
        "C": operands.c if problem.has_c else Pointer("none", 0),
        "alpha": complex_factor(problem.dtype, operands.alpha, alpha_im, conjugate=conjugate),
        "beta": complex_factor(problem.dtype, operands.beta, beta_im, conjugate=conjugate_c),
    }


def _geometry(problem: Gemm, config: Config) -> Geometry:
    matrices = config["THREADS"] // (problem.m * problem.n)
    return Geometry(grid=(ceil_div(problem.batch, matrices), 1, 1), block=(config["THREADS"], 1, 1))


def _arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    values: dict[str, Argument | float] = {**strided_values(problem, operands), **added(problem, operands)}
    conjugates = {f"conjugate_{name}": int(name in problem.conjugates) for name in "ab"}
    return _PARAMETERS.pack(problem.dtype, **values, batch=problem.batch, **conjugates)


def _why_not(problem: Gemm, _config: Config, _arch: object) -> str | None:
    longest = max(problem.m, problem.n, problem.k)
    return None if longest <= SMALL else f"{longest} rows, columns or terms > {SMALL}"


COMPLEX_GEMM: Kernel[Gemm] = Kernel(
    "complex_gemm", __name__, _CONFIG, _geometry, _arguments, _why_not, pdl=True, parameters=_PARAMETERS
)
PRODUCTION: Production[Gemm] = Production(
    COMPLEX_GEMM, lambda _problem, _arch: (_CONFIG,), explain, general=lambda _problem, _arch: _CONFIG
)
