"""D = alpha * A @ B + beta * C on tensor cores, for products of any sizes, strides and alignments.

Elements are float16, bfloat16 or float64, or float32 where the precision allows them to be split in tf32 numbers.

The twin of ``kernels/gemm`` on tensor cores. Sums of 16-bit types are float32 and rounded once. Where D has too few
tiles to occupy the GPU and k is long, split-K gives each tile to SPLIT_K blocks, and a second launch adds their partial
sums in fixed order. A matrix whose rows do not start on 16 bytes is copied in narrow copies. With REPACK_A or REPACK_B,
a launch before the product repacks a matrix of 16-bit elements.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Columns, Config, Tiles
from matmill.dtypes import BF16, F16, F32, F64
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.hgemm.cost import explain, least
from matmill.kernels.hgemm.tiles import (
    LARGEST,
    TILE,
    threads,
    unaligned,
    why_not,
    why_not_elements,
    with_vector_widths,
)
from matmill.kernels.hgemm.tiles import shaped as shapes
from matmill.kernels.hgemm.tiles import shapes as tile_shapes
from matmill.kernels.repack import REPACK, rewrite, why_not_repack, workspace_bytes
from matmill.kernels.shared.tensor_cores import splits_float32
from matmill.kernels.shared.tiled import STRIDED, geometry, strided_values, tile_count, work_tiles
from matmill.kernels.splitk import (
    SPLITK_REDUCE,
    batch_invariant_slices,
    splits,
    why_not_precision,
    why_not_split,
)
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: The fewest k-steps of a split-K slice: with fewer, filling the pipeline dominates.
_LEAST_STEPS = 4
#: Rows and columns of the tile for products whose own tile is not compiled.
_GENERAL = 64
#: ``a_first`` and ``b_first`` are the offsets of A and B from their pointers, in elements: repacked copies are in the
#: workspace.
_PARAMETERS = Parameters(
    (*STRIDED.fields, ("a_first", "Index"), ("b_first", "Index"), ("bias", "const Scalar*"), ("bias_stride", "Index"))
)


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering: the GPU's tile shapes, without and (for few tiles) with split-K.

    For unaligned matrices each shape comes twice: with narrow copies, and with repacking. If the tensor cores lack the
    element type or the precision there is only one, so that the reason is given once. There is none for float32 that
    FMA should sum.
    """
    return _among(problem, arch, None).configs


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space`, or its configurations that have one of ``tiles``."""
    if problem.dtype not in (F16, BF16, F64) and not splits_float32(problem, "tf32x3"):
        return Columns(())
    repack = unaligned(problem)
    shaped = shapes(problem, arch, ((), repack) if repack else ((),), tiles)
    first = shaped.configs[:1]
    if first and (_why_not_precision(problem) or why_not_elements(problem, first[0], arch)) is not None:
        return shaped.take([0], SPLIT_K=[1])
    each = 2 if problem.dtype is F32 else 1  # the second one has the epilogue of a split k
    pairs = [
        (row + (slices > 1) * (each - 1), slices)
        for row in range(0, len(shaped), each)
        for slices in _slices(problem, shaped.configs[row], arch)
    ]
    return shaped.take([row for row, _ in pairs], SPLIT_K=[slices for _, slices in pairs])


def general(problem: Gemm, arch: Arch) -> Config | None:
    """Return a tile of 16-bit elements whose copies are element by element: it takes all layouts of them."""
    if problem.dtype not in (F16, BF16):
        return None
    square = next(config for config in tile_shapes(arch) if config["BM"] == config["BN"] == _GENERAL)
    unaligned = Gemm(1, 1, 1, problem.dtype, a_align=2, b_align=2, d_align=2)
    return with_vector_widths(square, unaligned).launched(SPLIT_K=1, REPACK_A=0, REPACK_B=0)


def _slices(problem: Gemm, config: Config, arch: Arch) -> list[int]:
    if problem.slice_k:
        return [batch_invariant_slices(problem)]
    most = ceil_div(problem.k, config["BK"]) // _LEAST_STEPS
    return splits(tile_count(problem, config) * problem.batch, most, config["BLOCKS_PER_SM"], arch)


def _sums_in_slices(problem: Gemm, config: Config) -> bool:
    """Tell whether the blocks' slices are those of batch-invariant sums, which float32 has by FMA."""
    slices, step = config["SPLIT_K"], config["BK"]
    whole = slices == 1 or ceil_div(ceil_div(problem.k, step), slices) * step == problem.slice_k
    return slices == batch_invariant_slices(problem) and whole and problem.dtype is not F32


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return geometry(problem, config, int(threads(config)))


def _arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return _PARAMETERS.pack(
        problem.dtype,
        **strided_values(problem, operands),
        a_first=operands.a_first,
        b_first=operands.b_first,
        bias=operands.bias or Pointer("no bias", 0),
        bias_stride=problem.epilogue.bias_stride,
    )


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    missing = why_not_elements(problem, config, arch)
    if missing is not None:
        wide = problem.dtype is F64 or splits_float32(problem, "tf32x3")
        return missing if wide else f"{missing} (float32 needs no tensor core, float16 one of 7.5)"
    return (
        _why_not_precision(problem)
        or why_not(problem, config, arch)
        or why_not_split(problem, config)
        or why_not_repack(problem, config)
    )


def _why_not_precision(problem: Gemm) -> str | None:
    # float64 sums are rounded to nearest, those of float32 promoted; sums of 16-bit products are not.
    return why_not_precision(problem, promotes=problem.dtype in (F32, F64))


_WHOLE = Gemm(m=LARGEST["BM"], n=LARGEST["BN"], k=LARGEST["BK"], dtype=F16)

HGEMM: Kernel[Gemm] = Kernel(
    entry="hgemm",
    package=__name__,
    config=with_vector_widths(LARGEST, _WHOLE).launched(SPLIT_K=1, REPACK_A=0, REPACK_B=0),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    before=(REPACK,),
    after=SPLITK_REDUCE,
    workspace_bytes=workspace_bytes,
    rewrite=rewrite,
    pdl=True,
    parameters=_PARAMETERS,
    instruction="mma.sync",
    work_tiles=work_tiles,
    sums_in_slices=_sums_in_slices,
)

PRODUCTION: Production[Gemm] = Production.of(HGEMM, _among, explain, TILE, general, least=least)
