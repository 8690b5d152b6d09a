"""Products of complex elements on the FMA units in one launch, of any sizes, strides and alignments.

The pipeline, its constants, split-K and the cost model are those of ``kernels/gemm``. A term of a sum takes four FMAs.
"""

from __future__ import annotations

from dataclasses import replace

from matmill.arch import Arch
from matmill.config import Columns, Config, Tiles
from matmill.dtypes import C64
from matmill.kernel import GemmOperands, Geometry, Kernel, Production
from matmill.kernels.complex_gemm import added
from matmill.kernels.gemm import sliced
from matmill.kernels.gemm.cost import explain, least
from matmill.kernels.gemm.tiles import TILE, copies, shared_bytes, threads, tile, why_not
from matmill.kernels.shared.outputs import OUTPUT_FIELDS, output_values, workspace
from matmill.kernels.shared.tiled import STRIDED, geometry, strided_values, work_tiles
from matmill.kernels.splitk import SPLITK_REDUCE, split_bytes, why_not_split
from matmill.launch import Argument
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: Tile shapes by element size. A thread keeps two or four registers for each sum. Small products have few k-tiles, of
#: which the smallest tiles copy most ahead. Few shapes of complex128: tensor cores multiply its large products.
_TILES: dict[int, tuple[Config, ...]] = {
    8: (
        tile(128, 128, 8, 8, 8, 2, 4),
        tile(64, 128, 8, 8, 8, 2, 2, blocks_per_sm=2),
        tile(96, 64, 16, 6, 8, 2, 2, slices=2),
        tile(64, 64, 8, 8, 4, 2, 2, blocks_per_sm=3),
        tile(64, 64, 16, 8, 8, 1, 2, slices=2, blocks_per_sm=2),
        tile(64, 64, 16, 8, 4, 2, 2, slices=2),
        tile(32, 64, 16, 8, 4, 1, 2, slices=2, blocks_per_sm=3),
        tile(64, 32, 16, 8, 4, 2, 1, slices=2, blocks_per_sm=3),
        tile(32, 64, 32, 8, 4, 1, 2, slices=4),
        tile(48, 32, 32, 6, 8, 1, 1, slices=8),
        tile(32, 32, 32, 8, 4, 1, 1, slices=8),
        tile(16, 32, 32, 4, 4, 1, 1, slices=8, stages=4, blocks_per_sm=2),
        tile(16, 16, 32, 4, 2, 1, 1, slices=8, stages=5, blocks_per_sm=2),
    ),
    16: (
        tile(64, 64, 8, 4, 4, 2, 4),
        tile(32, 32, 16, 4, 4, 1, 2, slices=2, blocks_per_sm=2),
        tile(16, 16, 16, 4, 2, 1, 1, slices=4, blocks_per_sm=4),
    ),
}
_REDUCE = Parameters.of(
    C="const Scalar*", D="Scalar*", workspace="const Acc*", slices="int", m="int", n="int", **OUTPUT_FIELDS
)


def _constants(problem: Gemm) -> dict[str, int]:
    """Return the constants that follow from the problem.

    A product of B's conjugate is the conjugate of one of A's, and a product of both that of one of none.
    """
    return {**copies(problem), "CONJUGATE": len({"a", "b"} & {*problem.conjugates}) % 2}


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return every tile, without and (for few tiles) with split-K."""
    constants, every = _constants(problem), Columns(_TILES[problem.dtype.itemsize]).having(TILE, tiles).configs
    own = [one.replace(**constants, SHARED_BYTES=shared_bytes(one, problem.dtype)) for one in every]
    return sliced(Columns(own), problem, arch)


def _general(problem: Gemm, _arch: object) -> Config:
    """Return a tile of middling size whose copies are element by element: it takes all layouts."""
    narrow = replace(problem, a_strides=None, b_strides=None, a_align=1, b_align=1, d_align=1, gram=False)
    config = next(one for one in _TILES[problem.dtype.itemsize] if one["BM"] == one["BN"] == 64)
    return config.replace(**_constants(narrow), SHARED_BYTES=shared_bytes(config, problem.dtype)).launched(SPLIT_K=1)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return geometry(problem, config, int(threads(config)))


def _factors(problem: Gemm, operands: GemmOperands) -> dict[str, Argument | float]:
    return added(problem, operands, conjugate="b" in problem.conjugates)


def _arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    values: dict[str, Argument | float] = {**strided_values(problem, operands), **_factors(problem, operands)}
    return STRIDED.pack(problem.dtype, **values)


def _reduced(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    values: dict[str, Argument | float] = {**output_values(problem, operands), **_factors(problem, operands)}
    extents = {"slices": config["SPLIT_K"], "m": problem.m, "n": problem.n}
    return _REDUCE.pack(problem.dtype, D=operands.d, workspace=workspace(operands), **extents, **values)


def _why_not(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    if config["CONJUGATE"] != _constants(problem)["CONJUGATE"]:
        return "the constants are those of other conjugates"
    return why_not(problem, config) or why_not_split(problem, config)


#: The launch that adds partial sums, with as many threads per output as real ones have.
_AFTER = tuple(
    replace(
        one,
        entry="complex_splitk_reduce",
        package="matmill.kernels.complex_gemm",
        config=Config.of(OUTPUTS=one.config["OUTPUTS"], WAYS=one.config["WAYS"]),
        parameters=_REDUCE,
        arguments=_reduced,
        constants=None,
        file="reduce.cuh",
    )
    for one in SPLITK_REDUCE
)

COMPLEX_GEMM_TILED: Kernel[Gemm] = Kernel(
    entry="complex_gemm_tiled",
    package="matmill.kernels.complex_gemm",
    config=_general(Gemm(1, 1, 1, C64), None),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    after=_AFTER,
    workspace_bytes=split_bytes,
    pdl=True,
    parameters=STRIDED,
    file="tiled.cuh",
    instruction="fma",
    work_tiles=work_tiles,
)

PRODUCTION: Production[Gemm] = Production.of(COMPLEX_GEMM_TILED, _among, explain, TILE, _general, least=least)
