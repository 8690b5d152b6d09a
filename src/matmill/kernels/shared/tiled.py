"""What kernels with tiles of D share: the number of tiles, the longest extents, and the parameters of any strides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matmill.config import Config, Configs
from matmill.kernel import GemmOperands, Geometry, ceil_div
from matmill.kernels.shared.outputs import OUTPUT_FIELDS, output_values, workspace
from matmill.launch import Value
from matmill.parameters import Parameters
from matmill.problem import Gemm

VECTOR_BYTES = 16
#: Tile origins and loop counters are 32-bit integers, and a tile may reach past the end.
LONGEST = 2**31 - 1024


def tile_count(problem: Gemm, config: Configs) -> Any:
    """Count the tiles of D in one product of the batch."""
    return ceil_div(problem.m, config["BM"]) * ceil_div(problem.n, config["BN"])


def geometry(problem: Gemm, config: Config, threads: int) -> Geometry:
    """Return the launch of a block per tile of D, product of the batch and slice of k."""
    grid = (tile_count(problem, config), problem.batch, config["SPLIT_K"])
    return Geometry(grid, (threads, 1, 1), config["SHARED_BYTES"], even=True)


def work_tiles(problem: Gemm, config: Config) -> tuple[int, int]:
    """Count the work tiles of a kernel whose blocks compute a tile, or a slice of its k, each; a block has one."""
    return tile_count(problem, config) * problem.batch * config["SPLIT_K"], 1


def why_not_extents(problem: Gemm) -> str | None:
    """Say which extent is too long for 32-bit counters, or None.

    >>> why_not_extents(Gemm(m=8, n=2**31, k=8))
    'n = 2147483648 > 2147482624'
    """
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    return next((f"{name} = {extent} > {LONGEST}" for name, extent in extents.items() if extent > LONGEST), None)


def why_not_vector_widths(config: Config, widest: Mapping[str, int]) -> str | None:
    """Say which copies are wider than those of ``widest``, which are all that strides and alignment allow, or None."""
    for name in ("A_VEC", "B_VEC", "D_VEC"):
        if config[name] > widest[name]:
            return f"{name} = {config[name]} needs aligned, contiguous rows in multiples of {config[name]} elements"
    return None


#: Parameters of a tiled kernel that takes any strides: A, B, C, D and the workspace for partial sums; m, n, k; row,
#: column and batch stride of each matrix in elements; alpha and beta in the accumulator's type.
STRIDED = Parameters.of(
    A="const Scalar*",
    B="const Scalar*",
    C="const Scalar*",
    D="Scalar*",
    workspace="Acc*",
    m="int",
    n="int",
    k="int",
    a_row="Index",
    a_column="Index",
    a_batch="Index",
    b_row="Index",
    b_column="Index",
    b_batch="Index",
    **OUTPUT_FIELDS,
)


def strided_values(problem: Gemm, operands: GemmOperands) -> dict[str, Value | float]:
    """Return the values of :data:`STRIDED`."""
    a_batch, b_batch, _, _ = problem.batch_strides
    (a_row, a_column), (b_row, b_column) = problem.a_row_col, problem.b_row_col
    return {
        "A": operands.a,
        "B": operands.b,
        "C": operands.c,
        "D": operands.d,
        "workspace": workspace(operands),
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "a_row": a_row,
        "a_column": a_column,
        "a_batch": a_batch,
        "b_row": b_row,
        "b_column": b_column,
        "b_batch": b_batch,
        **output_values(problem, operands),
    }
