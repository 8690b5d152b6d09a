"""Batch-invariant products on the FMA units: slices of k in blocks of their own, or one after the other in a block.

``kernels/gemm/slices.cuh`` has both ways. The cost model is that of ``kernels/gemm``, whose pipeline this is.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs, Tiles
from matmill.dtypes import F32
from matmill.kernel import GemmOperands, Geometry, Kernel, Production
from matmill.kernels.gemm.cost import DEFAULT, explain, least, rounds
from matmill.kernels.gemm.tiles import TILE, copies, shared_bytes, threads, tile, why_not
from matmill.kernels.shared.model import Prediction
from matmill.kernels.shared.tiled import STRIDED, strided_values, tile_count, work_tiles
from matmill.kernels.splitk import (
    SPLITK_REDUCE,
    batch_invariant_slices,
    epilogue_constants,
    split_bytes,
    why_not_precision,
    why_not_split,
)
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: Tile shapes by the size of a sum: large ones, and those with few rows or columns. Each sum is one thread's.
_TILES: dict[int, tuple[Config, ...]] = {
    4: (
        tile(128, 256, 8, 16, 8, 2, 4),
        tile(128, 128, 8, 16, 8, 2, 2, blocks_per_sm=2),
        tile(64, 128, 16, 8, 8, 2, 2, blocks_per_sm=3),
        tile(64, 64, 16, 4, 8, 2, 2, blocks_per_sm=4),
        tile(32, 128, 16, 4, 8, 1, 4, blocks_per_sm=4),
        tile(32, 64, 16, 4, 4, 1, 4, blocks_per_sm=4),
        tile(16, 128, 32, 4, 4, 1, 4, blocks_per_sm=3),
        tile(16, 64, 32, 4, 4, 1, 2, blocks_per_sm=4),
        tile(8, 128, 32, 4, 4, 1, 2, blocks_per_sm=4),
        tile(128, 32, 16, 8, 4, 2, 2, blocks_per_sm=4),
        tile(128, 16, 32, 4, 4, 4, 1, blocks_per_sm=3),
    ),
    8: (
        tile(128, 128, 8, 8, 8, 2, 4),
        tile(64, 128, 8, 8, 8, 2, 2, blocks_per_sm=2),
        tile(32, 64, 16, 4, 4, 1, 4, blocks_per_sm=3),
        tile(16, 128, 16, 4, 4, 1, 4, blocks_per_sm=3),
        tile(128, 16, 16, 4, 4, 4, 1, blocks_per_sm=3),
    ),
}
_PARAMETERS = Parameters(
    tuple(
        (name, {"C": "const void*", "D": "void*"}.get(name, kind))
        for name, kind in (*STRIDED.fields, ("bias", "const Scalar*"), ("bias_stride", "Index"), ("slice_k", "int"))
    )
)


def _among(problem: Gemm, _arch: Arch, tiles: Tiles | None) -> Columns:
    """Return every tile, with all slices in a block and, where there are several, with a block for each."""
    if not problem.slice_k or problem.dtype.itemsize < 4:
        return Columns(())
    slices = batch_invariant_slices(problem)
    return Columns(
        [
            config.replace(**epilogue_constants(problem, count)).launched(SPLIT_K=count)
            for shape in _TILES[problem.dtype.accumulator.itemsize]
            for config in (shape.replace(**copies(problem), SHARED_BYTES=shared_bytes(shape, problem.dtype)),)
            for count in sorted({1, slices})
        ]
    ).having(TILE, tiles)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    waits = config["SPLIT_K"] == 1 and batch_invariant_slices(problem) > 1
    totals = config["BM"] * config["BN"] * problem.dtype.accumulator.itemsize
    return Geometry(
        grid=(tile_count(problem, config), problem.batch, config["SPLIT_K"]),
        block=(threads(config), 1, 1),
        dynamic_shared=config["SHARED_BYTES"] + waits * totals,
        even=True,
    )


def _arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return _PARAMETERS.pack(
        problem.dtype,
        **strided_values(problem, operands),
        bias=operands.bias or Pointer("no bias", 0),
        bias_stride=problem.epilogue.bias_stride,
        slice_k=problem.slice_k,
    )


def _why_not(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    slices = batch_invariant_slices(problem)
    if config["SPLIT_K"] not in {1, slices}:
        return f"{config['SPLIT_K']} slices of k: a batch-invariant sum of {problem.k} terms has {slices}"
    if any(config[name] != value for name, value in epilogue_constants(problem, config["SPLIT_K"]).items()):
        return "the constants of the epilogue are another problem's"
    return why_not_precision(problem, promotes=True) or why_not(problem, config) or why_not_split(problem, config)


def _example() -> Config:
    config = _TILES[4][0]
    problem = Gemm(m=128, n=256, k=64)
    return config.replace(**copies(problem), SHARED_BYTES=shared_bytes(config, F32), **epilogue_constants(problem))


def _explain(problem: Gemm, config: Configs, arch: Arch) -> Prediction:
    """Return the prediction of ``kernels/gemm``, and filling the pipeline again for each further slice of a block."""
    own = explain(problem, config, arch)
    further = (batch_invariant_slices(problem) - 1) * (config["SPLIT_K"] == 1)
    refill = further * rounds(problem, config, arch) * DEFAULT.fill_cycles / arch.boost_hz
    return Prediction(own.seconds + refill, {**own.terms, "compute": own.terms["compute"] + refill}, own.bounding)


GEMM_SLICES: Kernel[Gemm] = Kernel(
    entry="gemm_slices",
    package="matmill.kernels.gemm",
    config=_example().launched(SPLIT_K=1),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    after=SPLITK_REDUCE,
    workspace_bytes=split_bytes,
    pdl=True,
    parameters=_PARAMETERS,
    file="slices.cuh",
    instruction="fma",
    work_tiles=work_tiles,
    sums_in_slices=lambda problem, config: config["SPLIT_K"] in {1, batch_invariant_slices(problem)},
)

PRODUCTION: Production[Gemm] = Production.of(GEMM_SLICES, _among, _explain, TILE, least=least)
